package proxy

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

func TestWritesDrain(t *testing.T) {
	var w writes
	require.NoError(t, w.drain(t.Context()))
	first, second := w.begin(), w.begin()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, w.drain(ended), context.Canceled)
	later := w.begin()
	first()
	first() // no-op
	require.Error(t, w.drain(ended))
	done := make(chan error, 2)
	for range 2 {
		go func() { done <- w.drain(t.Context()) }()
	}
	second()
	later()
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	after := w.begin() // began after the drains
	require.Len(t, w.gates, 1)
	after()
	require.NoError(t, w.drain(t.Context()))
}

// switchView is a view of one partition whose state the test changes.
type switchView struct {
	fakeView
	part atomic.Pointer[ledger.Partition]
}

func (v *switchView) Partition(string, int32) *ledger.Partition { return v.part.Load() }
func (v *switchView) All() []*ledger.Partition                  { return []*ledger.Partition{v.part.Load()} }

func (v *switchView) set(l *epoch.Log, s epoch.State) {
	rec := &ledger.Record{Mirror: "dc1", Topic: "m", State: s, Lineage: "a", Log: *l}
	v.part.Store(&ledger.Partition{Topic: "m", Record: rec, Log: &rec.Log, Live: &ledger.Live{}})
}

// Leaving STOPPED: writes under way are waited for, also when the broker is
// late or the client goes; what comes later is refused.
func TestH10DrainOfWrites(t *testing.T) {
	leakCheck(t)
	l, err := logOf(t).OpenNative(0, 5, 5, 10)
	require.NoError(t, err)
	view := &switchView{fakeView: fakeView{fresh: true, topics: map[string]bool{"m": true}}}
	view.set(l, epoch.StateStopped)

	arrived, answer := make(chan struct{}, 8), make(chan struct{}, 8)
	addr := scriptedBroker(t, serveFrames(func(h protocol.RequestHeader, frame []byte) []byte {
		req := kmsg.RequestForKey(h.Key)
		req.SetVersion(h.Version)
		if req.ReadFrom(frame[h.HeaderLen:]) != nil {
			return nil
		}
		var tags []byte
		if req.IsFlexible() {
			tags = []byte{0}
		}
		switch q := req.(type) {
		case *kmsg.OffsetForLeaderEpochRequest:
			r := q.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
			p := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			p.LeaderEpoch, p.EndOffset = 5, 5
			r.Topics = []kmsg.OffsetForLeaderEpochResponseTopic{{Topic: "m", Partitions: []kmsg.OffsetForLeaderEpochResponseTopicPartition{p}}}
			return r.AppendTo(tags)
		case *kmsg.ProduceRequest:
			arrived <- struct{}{}
			<-answer
			r := q.ResponseKind().(*kmsg.ProduceResponse)
			p := kmsg.NewProduceResponseTopicPartition()
			p.BaseOffset = 5
			if len(q.Topics) > 0 && len(q.Topics[0].Partitions[0].Records) == 0 {
				p.BaseOffset, p.ErrorCode = -1, kerr.InvalidRecord.Code
			}
			r.Topics = []kmsg.ProduceResponseTopic{{Topic: "m", Partitions: []kmsg.ProduceResponseTopicPartition{p}}}
			return r.AppendTo(tags)
		}
		return nil
	}))
	h := newHandlers(handlerOptions{View: view, Logger: slog.New(slog.DiscardHandler)})
	opts := testOptions(addr)
	opts.handler = h
	p, err := New(opts)
	require.NoError(t, err)
	p.handlers = h
	known := &versions{ranges: map[int16][2]int16{protocol.KeyOffsetForLeaderEpoch: {0, 4}, protocol.KeyProduce: {0, 9}}}
	p.topology.snap.Store(&topoSnap{common: known})
	runProxy(t, p)

	produce := func(acks int16) *rawClient {
		c := dialRaw(t, p)
		c.send(request(protocol.KeyProduce, 9, 3, nil, produceReq(acks, map[string][]byte{"m": dense(t, 0, 1, 5)}).AppendTo(nil)))
		return c
	}
	code := func(c *rawClient) int16 {
		_, body := c.answer()
		r := kmsg.NewPtrProduceResponse()
		r.Version = 9
		require.NoError(t, r.ReadFrom(body[1:]))
		return r.Topics[0].Partitions[0].ErrorCode
	}
	drained := func() chan error {
		done := make(chan error, 1)
		go func() { done <- p.Drain(t.Context()) }()
		return done
	}
	require.NoError(t, p.Drain(t.Context()))
	for _, acks := range []int16{-1, 0} {
		view.set(l, epoch.StateStopped)
		c := produce(acks)
		<-arrived
		view.set(l, epoch.StateLogAlignment)
		done := drained()
		late := produce(-1) // refused, after the broker was asked for authorisation
		<-arrived
		require.Empty(t, done)
		answer <- struct{}{}
		answer <- struct{}{}
		require.NoError(t, <-done)
		if acks != 0 {
			require.Zero(t, code(c), "it was written while that was allowed")
		}
		require.Equal(t, kerr.PolicyViolation.Code, code(late))
	}
	// The client goes, hard, before the broker has answered.
	view.set(l, epoch.StateStopped)
	c := produce(-1)
	<-arrived
	done := drained()
	require.NoError(t, c.SetLinger(0))
	require.NoError(t, c.Close())
	answer <- struct{}{}
	require.NoError(t, <-done)
}
