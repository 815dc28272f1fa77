package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/kconn"
)

// Ends of partitions' logs are asked for together: what comes while a question
// is on its way to a broker goes in the next one. So the start of thousands of
// partitions costs a few requests, not some for each of them.

// endLooks are the questions that wait, by what they have in common.
type endLooks struct {
	pool *connPool

	mu    sync.Mutex
	lines map[endKind]*endLine
}

type endKind struct {
	addr   string
	ts     int64 // tsEarliest or tsLatest
	stable bool  // READ_COMMITTED: the last stable offset
}

func (k endKind) isolation() int8 {
	if k.stable {
		return 1
	}
	return 0
}

// endLine are the questions of one kind, in the order in which they came. While
// asking is set, one caller has a request on its way; when it is back, the first
// in the line asks for all that are there by then.
type endLine struct {
	asking  bool
	waiting []*endLook
}

type endLook struct {
	k     partKey
	epoch int32
	turn  chan struct{} // closed: the line is this one's to ask for
	done  chan struct{} // closed: off and err are set
	off   int64
	err   error
}

// maxLooks bounds one request.
const maxLooks = 1000

// errAskAlone: the request for many failed, which says nothing about one.
var errAskAlone = errors.New("the question for many partitions at once failed")

func newEndLooks(pool *connPool) *endLooks {
	return &endLooks{pool: pool, lines: map[endKind]*endLine{}}
}

// look is listOffset for a caller that holds no connection of the pool.
func (e *endLooks) look(ctx context.Context, addr string, k partKey, epoch int32, ts int64) (int64, error) {
	return e.ask(ctx, endKind{addr, ts, false}, k, epoch)
}

// stable asks for the last stable offset, at or below the high watermark. A new
// leader answers only when its high watermark has reached its epoch's start
// (KIP-207), so nothing that was decided before is open in it.
func (e *endLooks) stable(ctx context.Context, addr string, k partKey, epoch int32) (int64, error) {
	return e.ask(ctx, endKind{addr, tsLatest, true}, k, epoch)
}

func (e *endLooks) ask(ctx context.Context, kind endKind, k partKey, epoch int32) (int64, error) {
	x := &endLook{k: k, epoch: epoch, turn: make(chan struct{}), done: make(chan struct{})}
	if !e.queue(kind, x) {
		select {
		case <-x.done:
			return x.result(ctx, e.pool, kind)
		case <-x.turn:
		case <-ctx.Done():
			if !e.leave(kind, x) {
				e.next(kind) // it was this one's turn
			}
			return 0, context.Cause(ctx)
		}
	}
	list := e.take(kind)
	// Not in the line of those who lend a connection: everybody waits for this one.
	err := e.pool.long(ctx, kind.addr, func(c *kconn.Conn) error { return askEnds(ctx, c, kind, list) })
	e.next(kind)
	for _, y := range list {
		if err != nil {
			y.err = errAskAlone
		}
		close(y.done)
	}
	if err != nil && len(list) == 1 {
		return 0, err
	}
	return x.result(ctx, e.pool, kind)
}

// result is what was found out; what could not be found out together is asked
// alone.
func (x *endLook) result(ctx context.Context, pool *connPool, kind endKind) (off int64, err error) {
	if !errors.Is(x.err, errAskAlone) {
		return x.off, x.err
	}
	err = pool.with(ctx, kind.addr, func(c *kconn.Conn) error {
		off, err = listOffsetAs(ctx, c, x.k.topic, x.k.partition, x.epoch, kind.ts, kind.isolation())
		return err
	})
	return off, err
}

// queue adds x to its line. It says whether x has to ask at once.
func (e *endLooks) queue(kind endKind, x *endLook) (first bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.lines[kind]
	if l == nil {
		l = &endLine{}
		e.lines[kind] = l
	}
	l.waiting = append(l.waiting, x)
	first, l.asking = !l.asking, true
	return first
}

// take is what goes in the next request: each partition once.
func (e *endLooks) take(kind endKind) (list []*endLook) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.lines[kind]
	seen := map[partKey]bool{}
	var left []*endLook
	for _, x := range l.waiting {
		if seen[x.k] || len(list) == maxLooks {
			left = append(left, x)
			continue
		}
		seen[x.k] = true
		list = append(list, x)
	}
	l.waiting = left
	return list
}

// next gives the line to the first that waits.
func (e *endLooks) next(kind endKind) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.lines[kind]
	if len(l.waiting) == 0 {
		delete(e.lines, kind)
		return
	}
	close(l.waiting[0].turn)
}

// leave takes x out of its line; false: it was its turn to ask.
func (e *endLooks) leave(kind endKind, x *endLook) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.lines[kind]
	if l == nil {
		return true
	}
	if i := slices.Index(l.waiting, x); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	select {
	case <-x.turn:
		return false
	default:
		return true
	}
}

// askEnds is one ListOffsets for all of list. The error is the request's; a
// partition's own is in its look.
func askEnds(ctx context.Context, c *kconn.Conn, kind endKind, list []*endLook) error {
	v, err := c.Version(int16(kmsg.ListOffsets), 1+int16(kind.isolation()), 7)
	if err != nil {
		return err
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version, req.ReplicaID, req.IsolationLevel = v, -1, kind.isolation()
	topics := map[string]int{}
	asked := make(map[partKey]*endLook, len(list))
	for _, x := range list {
		x.err = fmt.Errorf("%w: ListOffsets answer without the partition", kconn.ErrNonsense)
		asked[x.k] = x
		at, ok := topics[x.k.topic]
		if !ok {
			at = len(req.Topics)
			topics[x.k.topic] = at
			rt := kmsg.NewListOffsetsRequestTopic()
			rt.Topic = x.k.topic
			req.Topics = append(req.Topics, rt)
		}
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.CurrentLeaderEpoch, rp.Timestamp = x.k.partition, x.epoch, kind.ts
		req.Topics[at].Partitions = append(req.Topics[at].Partitions, rp)
	}
	r, err := c.Request(ctx, req)
	if err != nil {
		return err
	}
	for _, t := range r.(*kmsg.ListOffsetsResponse).Topics {
		for _, a := range t.Partitions {
			x := asked[partKey{t.Topic, a.Partition}]
			if x == nil {
				continue
			}
			if x.off, x.err = a.Offset, nil; a.ErrorCode != 0 {
				x.err = fmt.Errorf("ListOffsets: %w", kerr.ErrorForCode(a.ErrorCode))
			}
		}
	}
	return nil
}
