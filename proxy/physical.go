package proxy

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// retryLater is what a client of a mirror topic gets while nothing certain can
// be said (H10): all clients know it, refresh their metadata and try again, in
// Fetch, ListOffsets, OffsetForLeaderEpoch and Produce alike
// (LEADER_NOT_AVAILABLE is unexpected in a Java Fetch, BROKER_NOT_AVAILABLE is
// fatal).
var retryLater = kerr.NotLeaderForPartition.Code

// Sizes of look-up reads.
const (
	probeBytes     int32 = 1        // one batch: a broker always returns the first whole
	scanBytes      int32 = 64 << 10 // first read of a scan
	maxScanBytes   int32 = 1 << 20  // what a scan's reads grow to
	maxLookupBytes int64 = 32 << 20 // an exchange asks the client to come again after reading so many
)

// ask sends a request upstream as the client and decodes the answer. When that
// fails the connection is closed, and cb is not called. The answer's buffer is
// given back when cb returns: records in it (Fetch, ShareFetch) must be used up
// or copied by then; kmsg copies everything else.
func ask[R kmsg.Response](x exchange, req kmsg.Request, cb func(R)) {
	x.Ask(req, func(body []byte, err error) {
		if err != nil {
			if !errors.Is(err, errExchangeOver) {
				x.Close(ReasonBrokerEOF, err)
			}
			return
		}
		resp := req.ResponseKind()
		if err := resp.ReadFrom(body); err != nil {
			x.Close(ReasonProtocolError, fmt.Errorf("answer of %s v%d: %w", kmsg.NameForKey(req.Key()), req.GetVersion(), err))
			return
		}
		cb(resp.(R))
		x.Release(body)
	})
}

// reader reads one mirror partition's physical log for one exchange: on the
// client's own connection, so that the broker authorises every read as the
// client's.
type reader struct {
	h     *handlers
	x     exchange
	key   partKey
	spent *int64 // bytes of batches read by the exchange so far
	// isolation says which end the log has for bounds: high watermark, or last
	// stable offset.
	isolation int8

	start, end int64 // physical log start and high watermark, once bounded
	leader     int32 // newest physical leader epoch then; -1: an old broker
	bounded    bool
}

// chart is what is known of the log that is read.
func (r *reader) chart(p *ledger.Partition) *chart {
	if !r.bounded {
		return r.h.atlas.chart(r.key, p)
	}
	return r.h.atlas.chartUnder(r.key, p, r.leader)
}

// chunk is one answer; its records live until the callback returns.
type chunk struct {
	code    int16
	records []byte
	hw      int64
}

// read fetches from physical offset p, up to maxBytes but one batch at least.
// Uncommitted transactions are read too: what is live is decided by stamps.
func (r *reader) read(p int64, maxBytes int32, cb func(chunk)) {
	lo, hi, ok := r.x.UpstreamVersion(protocol.KeyFetch)
	version := min(hi, 12) // the last version with topic names
	if !ok || version < max(lo, 4) {
		r.x.Log().Error("the broker speaks no Fetch version that can be used for look-ups", "topic", r.key.topic, "min", lo, "max", hi)
		cb(chunk{code: kerr.UnsupportedVersion.Code})
		return
	}
	if *r.spent > maxLookupBytes {
		cb(chunk{code: retryLater})
		return
	}
	req := kmsg.NewPtrFetchRequest()
	req.Version = version
	req.SessionID, req.SessionEpoch = 0, sessionEpochFinal
	req.MaxBytes = max(maxBytes, 1)
	part := kmsg.NewFetchRequestTopicPartition()
	part.Partition, part.FetchOffset, part.PartitionMaxBytes = r.key.partition, p, max(maxBytes, 1)
	req.Topics = []kmsg.FetchRequestTopic{{Topic: r.key.topic, Partitions: []kmsg.FetchRequestTopicPartition{part}}}
	ask(r.x, req, func(resp *kmsg.FetchResponse) {
		if resp.ErrorCode != 0 {
			cb(chunk{code: resp.ErrorCode})
			return
		}
		for _, t := range resp.Topics {
			for _, a := range t.Partitions {
				if t.Topic == r.key.topic && a.Partition == r.key.partition {
					*r.spent += int64(len(a.RecordBatches))
					cb(chunk{code: a.ErrorCode, records: a.RecordBatches, hw: a.HighWatermark})
					return
				}
			}
		}
		cb(chunk{code: kerr.UnknownServerError.Code})
	})
}

// bounds asks for the physical log start and high watermark, once an exchange.
func (r *reader) bounds(cb func(code int16)) {
	if r.bounded {
		cb(0)
		return
	}
	var first int16
	r.listOffset(protocol.TimestampEarliest, func(p int64, _ int32, code int16) { r.start, first = p, code })
	r.listOffset(protocol.TimestampLatest, func(p int64, pe int32, code int16) {
		if first != 0 {
			code = first
		}
		r.leader = pe
		r.end, r.bounded = frozen(r.h.view.Partition(r.key.topic, r.key.partition), p), code == 0
		cb(code)
	})
}

// listOffset asks the broker for one physical offset and its leader epoch (-1: it
// does not say).
func (r *reader) listOffset(timestamp int64, cb func(p int64, pe int32, code int16)) {
	_, hi, ok := r.x.UpstreamVersion(protocol.KeyListOffsets)
	if !ok || hi < 1 {
		cb(-1, -1, kerr.UnsupportedVersion.Code)
		return
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version, req.ReplicaID, req.IsolationLevel = min(hi, 7), -1, r.isolation
	part := kmsg.NewListOffsetsRequestTopicPartition()
	part.Partition, part.Timestamp = r.key.partition, timestamp
	req.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: r.key.topic, Partitions: []kmsg.ListOffsetsRequestTopicPartition{part}}}
	ask(r.x, req, func(resp *kmsg.ListOffsetsResponse) {
		for _, t := range resp.Topics {
			for _, a := range t.Partitions {
				if t.Topic == r.key.topic && a.Partition == r.key.partition {
					cb(a.Offset, a.LeaderEpoch, a.ErrorCode)
					return
				}
			}
		}
		cb(-1, -1, kerr.UnknownServerError.Code)
	})
}

// scanEnd says how a scan ended: code of the broker or retryLater; stopped by
// the visitor; else the limit or the high watermark was reached.
type scanEnd struct {
	next    int64 // physical offset behind the last batch visited
	code    int16
	stopped bool
}

// scan shows the batches of [from, to) to visit in physical order until it
// returns false; a batch that contains from comes too, dead ends of closed
// spans do not. first is the size of the first read; the following grow.
func (r *reader) scan(l *epoch.Log, from, to int64, first int32, visit func(protocol.Batch, epoch.Batch) bool, done func(scanEnd)) {
	p := jump(l, from)
	if p >= to {
		done(scanEnd{next: p})
		return
	}
	r.read(p, first, func(c chunk) {
		if c.code != 0 {
			done(scanEnd{next: p, code: c.code})
			return
		}
		at := p
		rest := c.records
		for len(rest) > 0 {
			b, after, err := protocol.NextBatch(rest)
			if err != nil {
				break // a trailing part; or nonsense, which the next read meets first
			}
			rest = after
			e := headerOf(b)
			if e.PEnd() <= p {
				continue
			}
			if e.P >= to {
				done(scanEnd{next: to})
				return
			}
			at = e.PEnd()
			if !visit(b, e) {
				done(scanEnd{next: at, stopped: true})
				return
			}
			if j := jump(l, at); j > at {
				at = j
				break // what follows in this chunk is dead
			}
		}
		if at == p { // nothing there: the high watermark, or a batch that can't be read
			done(scanEnd{next: p})
			return
		}
		r.scan(l, at, to, min(max(first, scanBytes/8)*8, maxScanBytes), visit, done)
	})
}
