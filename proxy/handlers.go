package proxy

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// handlers answer what clients ask of mirror topics (DESIGN §9). One value
// serves all connections, on several event loops at once.
//
// Whatever is answered for a mirror topic has been asked of the broker as the
// client, on the client's own connection; an error in that answer is passed on.
type handlers struct {
	view             ledgerView
	log              *slog.Logger
	work             *workers
	atlas            atlas
	fetchUpstreamMax int32 // most bytes asked of a broker for one Fetch
	now              func() time.Time
	count            handlerCounters
	writes           writes // of clients to mirror topics, under way

	// strangers are ids under which brokers show topics whose name is a mirror
	// topic's, but not its id: re-created behind our back (M22). Fetches by
	// such an id would pass for those of an ordinary topic.
	strangers sync.Map // [16]byte → topic name
}

// handlerCounters are called from event loops; nil ones are left out.
type handlerCounters struct {
	hidden  func(topic string, partition int32, batches int)
	alarm   func(topic string, partition int32) // LSO below the high watermark in a mirrored span (H16)
	refused func(topic string, partition int32, api string)
	unsound func(topic string, partition int32) // what lies below an open native span was lost (H4)
	deadDup func(topic string, partition int32) // a producer was answered with the offset of a record that is not shown (H8)
	blind   func(topic string, partition int32) // a Fetch without epochs went on above a cut
}

// handlerOptions: View is required.
type handlerOptions struct {
	View             ledgerView
	Logger           *slog.Logger
	Workers          int   // goroutines for decompression, default 2
	FetchUpstreamMax int32 // bytes, default 8 MiB
	Counters         handlerCounters
}

func newHandlers(o handlerOptions) *handlers {
	h := &handlers{
		view: o.View, log: o.Logger, count: o.Counters,
		fetchUpstreamMax: o.FetchUpstreamMax, now: time.Now,
	}
	if h.log == nil {
		h.log = slog.Default()
	}
	if o.Workers <= 0 {
		o.Workers = 2
	}
	if h.fetchUpstreamMax <= 0 {
		h.fetchUpstreamMax = 8 << 20
	}
	h.work = newWorkers(o.Workers)
	return h
}

// wait returns when no worker of the handlers runs any more. Call it after the
// last connection has gone.
func (h *handlers) wait() { h.work.wait() }

// takes: the APIs whose requests name offsets, epochs or records of partitions,
// and those that may be refused, once there is a mirror topic at all.
func (h *handlers) takes(hdr protocol.RequestHeader) bool {
	return h.handlerOf(hdr.Key) != nil && h.view.Any()
}

func (h *handlers) handlerOf(key int16) func(x exchange, version int16, body []byte) {
	switch key {
	case protocol.KeyProduce:
		return h.handleProduce
	case protocol.KeyFetch:
		return h.handleFetch
	case protocol.KeyListOffsets:
		return h.handleListOffsets
	case protocol.KeyDeleteRecords:
		return h.handleDeleteRecords
	case protocol.KeyOffsetForLeaderEpoch:
		return h.handleOffsetForLeaderEpoch
	case protocol.KeyDeleteTopics:
		return h.handleDeleteTopics
	case protocol.KeyCreatePartitions:
		return h.handleCreatePartitions
	case protocol.KeyAlterConfigs:
		return h.handleAlterConfigs
	case protocol.KeyIncrementalAlterConfigs:
		return h.handleIncrementalAlterConfigs
	case protocol.KeyShareFetch:
		return h.handleShareFetch
	case protocol.KeyShareAcknowledge:
		return h.handleShareAcknowledge
	case protocol.KeyAlterShareOffsets:
		return h.handleAlterShareOffsets
	}
	return nil
}

// concerns says whether a frame names a mirror topic, or is part of a fetch
// session that may be ours or may have to end.
func (h *handlers) concerns(hdr protocol.RequestHeader, frame []byte) bool {
	if hdr.Key != protocol.KeyProduce {
		return true
	}
	var q protocol.ProduceRequest
	if q.Decode(hdr.Version, frame[hdr.HeaderLen:]) != nil {
		return true // handle closes the connection
	}
	for i := range q.Topics {
		if _, ok := h.mirrorTopic(q.Topics[i].Name, q.Topics[i].ID); ok {
			return true
		}
	}
	return false
}

func (h *handlers) handle(x exchange) {
	hdr := x.Header()
	body := x.Frame()[hdr.HeaderLen:]
	if handle := h.handlerOf(hdr.Key); handle != nil {
		handle(x, hdr.Version, body)
		return
	}
	x.Forward()
}

// badRequest closes a connection whose request can't be read.
func badRequest(x exchange, err error) {
	x.Close(ReasonBadFrame, fmt.Errorf("request of client %q: %w", x.Header().ClientID, err))
}

// mirrorTopic resolves a topic as a request names it: by name, or by id.
func (h *handlers) mirrorTopic(name string, id [16]byte) (string, bool) {
	if name != "" {
		return name, h.view.Topic(name)
	}
	if name, ok := h.view.TopicByID(id); ok {
		return name, true
	}
	if name, ok := h.strangers.Load(id); ok && h.view.Topic(name.(string)) {
		return name.(string), true
	}
	return "", false
}

// partition is the snapshot of a mirror partition, nil when nothing may be
// answered from it: the view is stale (H10), there is no record, it can't be
// read, its log was not begun, or the id asked for is not the one it speaks of.
func (h *handlers) partition(k partKey, id [16]byte) *ledger.Partition {
	if !h.view.Fresh() {
		return nil
	}
	p := h.view.Partition(k.topic, k.partition)
	if !usable(p) {
		return nil
	}
	if id != [16]byte{} && !p.Record.TopicID.IsZero() && id != [16]byte(p.Record.TopicID) {
		return nil
	}
	return p
}

// Re-reading the ledger before a destructive answer (H12): the view follows the
// ledger all the time, so it is enough to wait until it has been read to its
// end after the question was put.
const (
	rereadPoll = 20 * time.Millisecond
	rereadMax  = 3 * time.Second
)

// reread calls cb(true) once the ledger has been read to its end after now, or
// cb(false) if that does not happen soon.
func (h *handlers) reread(x exchange, cb func(ok bool)) {
	asked := h.now()
	var look func()
	look = func() {
		switch {
		case h.view.Fresh() && h.view.FreshAt().After(asked):
			cb(true)
		case h.now().Sub(asked) > rereadMax:
			cb(false)
		default:
			x.After(rereadPoll, look)
		}
	}
	look()
}

// addresser is implemented by exchanges that know under which addresses their
// client sees the brokers.
type addresser interface {
	Advertise(nodeID int32, host string, port int32) (newHost string, newPort int32, ok bool)
}

// addresses maps the node endpoints (KIP-951) in answers that handlers build;
// nil: leave them out, clients then ask for metadata.
func addresses(x exchange) protocol.AddressFunc {
	if a, ok := x.(addresser); ok {
		return a.Advertise
	}
	return nil
}

// replyKmsg answers with a kmsg response of the request's version.
func replyKmsg(x exchange, resp kmsg.Response) {
	x.Reply([][]byte{resp.AppendTo(nil)})
}

// physicalEpoch translates a leader epoch as the client knows it to the
// broker's, so that the broker itself fences, by the epoch it has right now.
// ok false: below every epoch that was shown under this bump.
func physicalEpoch(p *ledger.Partition, shown int32) (pe int32, ok bool) {
	if shown < 0 {
		return -1, true
	}
	pe = shown - p.Log.Bump
	return pe, pe >= 0
}

// fencedBy is the leader epoch to ask the broker with where a wrong refusal
// can't be looked into: none when the client's is the newest of the chain,
// which is shown even while the broker's own is still below it (shownEpoch).
func fencedBy(p *ledger.Partition, shown int32) int32 {
	pe, ok := physicalEpoch(p, shown)
	if !ok || shown == p.Log.Chain.Newest() {
		return -1
	}
	return pe
}
