package proxy

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// fakeView is a ledger view that the test sets.
type fakeView struct {
	fresh   bool
	freshAt time.Time
	version uint64
	topics  map[string]bool
	ids     map[[16]byte]string
	parts   map[partKey]*ledger.Partition
}

func (v *fakeView) Fresh() bool                          { return v.fresh }
func (v *fakeView) FreshAt() time.Time                   { return v.freshAt }
func (v *fakeView) TopicsVersion() uint64                { return v.version }
func (v *fakeView) Any() bool                            { return len(v.topics) > 0 }
func (v *fakeView) Topic(t string) bool                  { return v.topics[t] }
func (v *fakeView) TopicByID(id [16]byte) (string, bool) { n, ok := v.ids[id]; return n, ok }
func (v *fakeView) All() (all []*ledger.Partition) {
	for _, p := range v.parts {
		all = append(all, p)
	}
	return all
}

func (v *fakeView) Partition(t string, p int32) *ledger.Partition {
	return v.parts[partKey{t, p}]
}

// bench is a handlers value with its simulated surroundings.
type bench struct {
	t    testing.TB
	h    *handlers
	view *fakeView
	sim  *sim
	now  time.Time
	st   *connState
	// onWait runs whenever virtual time passes.
	onWait     func()
	onReply    func() // runs whenever an answer is given
	maxFetch   int16
	mostBodies int // answers that one exchange held at once, at most
}

func newBench(t testing.TB) *bench { return newBenchOn(t, t) }

func newBenchOn(t testing.TB, on require.TestingT) *bench {
	b := &bench{
		t: t, sim: newSim(on), st: &connState{}, now: time.Unix(1_700_000_000, 0), maxFetch: 18,
		view: &fakeView{fresh: true, topics: map[string]bool{}, ids: map[[16]byte]string{}, parts: map[partKey]*ledger.Partition{}},
	}
	b.view.freshAt = b.now
	b.h = newHandlers(handlerOptions{View: b.view, Logger: slog.New(slog.DiscardHandler)})
	b.h.now = func() time.Time { return b.now }
	return b
}

// mirror makes a topic's partition a mirror's, with this log.
func (b *bench) mirror(topic string, p int32, l *epoch.Log) *ledger.Partition {
	if !b.view.topics[topic] {
		b.view.topics[topic] = true
		b.view.version++
	}
	rec := &ledger.Record{Mirror: "dc1", Topic: topic, Partition: p, State: epoch.StateMirroring, Lineage: "a", Log: *l}
	lp := &ledger.Partition{Topic: topic, Partition: p, Record: rec, Log: &rec.Log, Live: &ledger.Live{}}
	if old := b.view.parts[partKey{topic, p}]; old != nil {
		lp.Checkpoint, lp.Live = old.Checkpoint, old.Live
		rec.TopicID, rec.State = old.Record.TopicID, old.Record.State
	}
	b.view.parts[partKey{topic, p}] = lp
	return lp
}

// id gives a mirror topic or another one its topic id.
func (b *bench) id(topic string, n byte) [16]byte {
	id := [16]byte{15: n}
	b.sim.ids[id] = topic
	if b.view.topics[topic] {
		b.view.ids[id] = topic
		for k, p := range b.view.parts {
			if k.topic == topic {
				p.Record.TopicID = id
			}
		}
	}
	return id
}

// outcome of an exchange.
type result struct {
	body      []byte
	forwarded bool
	nothing   bool
	closed    CloseReason
	err       error
	took      time.Duration
}

// fakeExchange is an exchange on a loop that the test turns.
type fakeExchange struct {
	b     *bench
	hdr   protocol.RequestHeader
	frame []byte
	queue []func()
	posts chan func()
	timer []fakeTimer
	done  *result

	bodies map[*byte]bool // answers not given back yet
	ends   []func()
}

type fakeTimer struct {
	at time.Time
	f  func()
}

func (x *fakeExchange) Header() protocol.RequestHeader { return x.hdr }
func (x *fakeExchange) Frame() []byte                  { return x.frame }
func (x *fakeExchange) State() *connState              { return x.b.st }
func (x *fakeExchange) BrokerID() int32                { return 1 }
func (x *fakeExchange) Log() *slog.Logger              { return slog.New(slog.DiscardHandler) }
func (x *fakeExchange) Post(f func())                  { x.posts <- f }

func (x *fakeExchange) UpstreamVersion(key int16) (lo, hi int16, ok bool) {
	if key == protocol.KeyFetch {
		return 4, x.b.maxFetch, true
	}
	return 1, 8, true
}

func (x *fakeExchange) Ask(req kmsg.Request, cb func([]byte, error)) {
	x.AskFrame(req.Key(), req.GetVersion(), [][]byte{req.AppendTo(nil)}, cb)
}

func (x *fakeExchange) AskFrame(key, version int16, bufs [][]byte, cb func([]byte, error)) {
	if x.done != nil {
		return
	}
	req := kmsg.RequestForKey(key)
	req.SetVersion(version)
	var body []byte
	for _, b := range bufs {
		body = append(body, b...)
	}
	require.NoError(x.b.t, req.ReadFrom(body))
	x.queue = append(x.queue, func() {
		if f, ok := req.(*kmsg.FetchRequest); ok && f.MaxWaitMillis > 0 && !x.b.ready(f) {
			x.b.pass(time.Duration(f.MaxWaitMillis) * time.Millisecond)
		}
		body := x.b.sim.answer(req).AppendTo(nil)
		if x.bodies == nil {
			x.bodies = map[*byte]bool{}
		}
		x.bodies[&body[0]] = true
		x.b.mostBodies = max(x.b.mostBodies, len(x.bodies))
		cb(body, nil)
	})
}

// Release poisons what is given back.
func (x *fakeExchange) Release(body []byte) {
	if len(body) == 0 || !x.bodies[&body[0]] {
		return
	}
	delete(x.bodies, &body[0])
	for i := range body {
		body[i] = 0xEE
	}
}

// ready says whether a broker would answer a Fetch at once.
func (b *bench) ready(q *kmsg.FetchRequest) bool {
	asked := b.sim.asked
	defer func(f func()) { b.sim.asked, b.sim.onFetch = asked, f }(b.sim.onFetch)
	b.sim.onFetch = nil
	for _, t := range b.sim.fetch(q).(*kmsg.FetchResponse).Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode != 0 || len(p.RecordBatches) > 0 || p.PreferredReadReplica >= 0 {
				return true
			}
		}
	}
	return false
}

func (b *bench) pass(d time.Duration) {
	b.now = b.now.Add(d)
	if b.view.fresh {
		b.view.freshAt = b.now
	}
	if b.onWait != nil {
		b.onWait()
	}
}

func (x *fakeExchange) end(r result) {
	if x.done == nil {
		x.done = &r
		for _, f := range x.ends {
			f()
		}
	}
}

func (x *fakeExchange) OnEnd(f func()) { x.ends = append(x.ends, f) }

func (x *fakeExchange) Reply(bufs [][]byte) {
	if x.b.onReply != nil {
		x.b.onReply()
	}
	var body []byte
	for _, b := range bufs {
		body = append(body, b...)
	}
	x.end(result{body: body})
}
func (x *fakeExchange) ReplyNothing()                  { x.end(result{nothing: true}) }
func (x *fakeExchange) Forward()                       { x.end(result{forwarded: true}) }
func (x *fakeExchange) Close(r CloseReason, err error) { x.end(result{closed: r, err: err}) }

func (x *fakeExchange) After(d time.Duration, cb func()) func() {
	x.timer = append(x.timer, fakeTimer{x.b.now.Add(d), cb})
	return func() {}
}

var errStuck = errors.New("nothing left to do, and no answer")

// run gives a request to the handlers and turns the loop until it is answered.
func (b *bench) run(req kmsg.Request) result {
	began := b.now
	x := b.begin(req)
	for turns := 0; x.done == nil; turns++ {
		require.Less(b.t, turns, 100_000, "no end")
		b.turn(x)
	}
	x.done.took = b.now.Sub(began)
	return *x.done
}

// begin gives a request to the handlers.
func (b *bench) begin(req kmsg.Request) *fakeExchange {
	hdr := protocol.RequestHeader{Key: req.Key(), Version: req.GetVersion(), ClientID: []byte("test")}
	frame := protocol.AppendRequestHeader(nil, hdr.Key, hdr.Version, 7, hdr.ClientID)
	hdr.HeaderLen = len(frame)
	x := &fakeExchange{b: b, hdr: hdr, frame: req.AppendTo(frame), posts: make(chan func(), 64)}
	b.h.handle(x)
	return x
}

// turn does the next thing that an exchange waits for.
func (b *bench) turn(x *fakeExchange) {
	if len(x.queue) > 0 {
		f := x.queue[0]
		x.queue = x.queue[1:]
		f()
		return
	}
	b.h.wait()
	select {
	case f := <-x.posts:
		f()
		return
	default:
	}
	if len(x.timer) == 0 {
		require.NoError(b.t, errStuck)
	}
	first := 0
	for i := range x.timer {
		if x.timer[i].at.Before(x.timer[first].at) {
			first = i
		}
	}
	tm := x.timer[first]
	x.timer = append(x.timer[:first], x.timer[first+1:]...)
	b.pass(max(tm.at.Sub(b.now), 0))
	tm.f()
}

// ask runs a request that must be answered by the handlers.
func respond[R kmsg.Response](b *bench, req kmsg.Request) R {
	r := b.run(req)
	require.False(b.t, r.forwarded, "forwarded")
	require.NoError(b.t, r.err)
	resp := req.ResponseKind()
	require.NoError(b.t, resp.ReadFrom(r.body))
	return resp.(R)
}
