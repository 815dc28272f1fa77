package proxy

import (
	"errors"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// exchange is one *handled* client request (handled_*.go): one that Lockstep
// answers itself, or looks into before it passes it on. It starts when every
// request before it on this connection is answered; client frames behind it
// wait until it ends.
//
// All calls and all callbacks run on the connection's event loop: nothing may
// block, and nothing needs a lock. An exchange ends with exactly one of Reply,
// ReplyNothing, Forward and Close; later calls are no-ops. When the connection
// goes away first, each outstanding Ask callback is called once with
// errExchangeOver, timers are cancelled, and whatever the callback then does
// on the exchange is a no-op.
type exchange interface {
	// Header is the parsed request header.
	Header() protocol.RequestHeader
	// Frame is the whole request without its 4-byte size: header and body. It
	// may be changed in place and lives until the exchange ends.
	Frame() []byte
	// Ask sends req upstream on this client's own, authenticated connection,
	// with the client's client id; the version is req.GetVersion(). cb gets the
	// response's body (after its header, error codes uninterpreted); the body
	// may be changed in place and lives until Release or the end of the
	// exchange. Several may be outstanding: answers come in the order of the calls.
	Ask(req kmsg.Request, cb func(body []byte, err error))
	// AskFrame is Ask with a body encoded by the caller; bufs (everything after
	// the request header) are not kept after the call.
	AskFrame(key, version int16, bufs [][]byte, cb func(body []byte, err error))
	// Release gives back the buffer of an answer, body as cb got it, once the
	// caller and everything that aliases it is done with it; nil and bodies given
	// back before are no-ops. Without it the buffer lives until the exchange ends:
	// who asks often must release, so that one exchange holds about two answers.
	Release(body []byte)
	// UpstreamVersion is the range of versions of an API that both the broker
	// behind this connection speaks and we have reviewed.
	UpstreamVersion(key int16) (minVersion, maxVersion int16, ok bool)
	// Reply answers the client: body is everything after the response header;
	// size, correlation id and header tags are added. bufs may alias Frame and
	// Ask bodies and are not kept after the call. Ends the exchange.
	Reply(body [][]byte)
	// ReplyNothing ends the exchange without an answer (Produce, acks=0).
	ReplyNothing()
	// Forward sends Frame on as it is now and streams its answer (rewritten
	// where a passed-through one would be). Ends the exchange.
	Forward()
	// Close closes the client's connection. Ends the exchange.
	Close(reason CloseReason, err error)
	// After calls cb on the loop after d unless cancelled or the exchange ended
	// before.
	After(d time.Duration, cb func()) (cancel func())
	// OnEnd calls f once when the exchange has ended in whatever way.
	OnEnd(f func())
	// State is what handlers keep per client connection.
	State() *connState
	// BrokerID is the broker this connection's listener stands for, -1 for
	// bootstrap.
	BrokerID() int32
	Log() *slog.Logger
}

// errExchangeOver is what Ask callbacks get when the connection went away
// before the answer came.
var errExchangeOver = errors.New("connection closed before the broker answered")

// requestHandler decides which requests are handled, and how. Its methods run
// on event loops, several at once for different connections: they may not
// block and share only concurrency-safe state.
type requestHandler interface {
	// takes says, from key and version alone (the only fields of hdr that are
	// set besides the correlation id), whether this request's frame has to be
	// buffered and given to handle.
	takes(hdr protocol.RequestHeader) bool
	// handle runs one exchange; it may end later, from a callback.
	handle(x exchange)
	// response changes a buffered pass-through answer, body = after the
	// response header, addresses already rewritten. The result may be body
	// itself, changed in place.
	response(key, version int16, body []byte) ([]byte, error)
}

// framePeeker is optionally implemented by a requestHandler: concerns says,
// from a whole frame, whether handle is needed at all. When it isn't, the frame
// is passed on at once, without waiting for the answers before it, so that
// pipelined requests for ordinary topics stay pipelined.
type framePeeker interface {
	concerns(hdr protocol.RequestHeader, frame []byte) bool
}

// topicsVersioner is optionally implemented by a requestHandler: the number
// changes when the set of mirror topics does. A Fetch that was passed on may
// wait for long, and its topic may have become a mirror topic meanwhile: its
// answer is then buffered and given to response, which refuses it (M3).
type topicsVersioner interface {
	topicsVersion() uint64
}

func (p *Proxy) topicsVersion() uint64 {
	if v, ok := p.handler.(topicsVersioner); ok {
		return v.topicsVersion()
	}
	return 0
}

// errTopicsMoved: an answer with physical offsets of what is a mirror topic by
// now.
var errTopicsMoved = errors.New("a topic of this answer became a mirror topic while the request was under way")

// noHandler passes everything through: a destination without mirrors.
type noHandler struct{}

func (noHandler) takes(protocol.RequestHeader) bool                { return false }
func (noHandler) handle(x exchange)                                { x.Forward() }
func (noHandler) response(_, _ int16, body []byte) ([]byte, error) { return body, nil }
