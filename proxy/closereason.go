package proxy

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"time"
)

// CloseReason says why a client connection ended. It is the word in the log
// and the label of lockstep_closed_connections_total.
type CloseReason uint8

// The reasons, in no order.
const (
	ReasonClientEOF           CloseReason = iota // the client closed, or its connection broke
	ReasonBrokerEOF                              // the broker closed, or its connection broke
	ReasonFrameTooLarge                          // a frame above limits.max_frame_bytes
	ReasonBadFrame                               // the client sent something that is no Kafka frame
	ReasonLooksLikeTLS                           // a TLS hello on a plaintext listener
	ReasonLooksLikeHTTP                          // an HTTP request
	ReasonUnknownAPI                             // an API key or version that was not advertised
	ReasonSlowConsumer                           // the client took next to nothing of what waits for it for limits.idle_timeout
	ReasonIdle                                   // no request for limits.idle_timeout
	ReasonStalledFrame                           // a request was begun, and too little of it came within limits.stalled_frame_timeout
	ReasonHandshakeTimeout                       // no first request within limits.handshake_timeout
	ReasonConnectFailed                          // no broker could be reached for this connection
	ReasonDraining                               // Lockstep shuts down
	ReasonAcks0Refused                           // a refused produce that has no answer (acks=0)
	ReasonProtocolError                          // the broker sent something that answers no request, or can't be understood
	ReasonViewStale                              // the ledger view is too old to serve a mirror topic, or moved under an answer
	ReasonMaxConnections                         // above limits.max_connections
	ReasonMaxConnectionsPerIP                    // above limits.max_connections_per_ip
	ReasonLooksLikePlaintext                     // a plaintext client on a TLS listener
	ReasonTLSHandshake                           // the TLS handshake failed
	ReasonUnknownSNI                             // a TLS hello without a server name, or with one that is not the listener's
	ReasonBadProxyHeader                         // a PROXY protocol header that is broken, missing where required, or not expected
	ReasonMemory                                 // it held memory for too long while others waited for some (limits.proxy_memory)
	ReasonMaxAge                                 // it was open for limits.max_connection_age
	ReasonInternal                               // a fault of Lockstep
	numReasons
)

var reasonWords = [numReasons]string{
	"client_eof", "broker_eof", "frame_too_large", "bad_frame", "looks_like_tls", "looks_like_http", "unknown_api",
	"slow_consumer", "idle", "stalled_frame", "handshake_timeout", "connect_failed", "draining", "acks0_refused",
	"protocol_error", "view_stale", "max_connections", "max_connections_per_ip", "looks_like_plaintext", "tls_handshake",
	"unknown_sni", "bad_proxy_header", "memory", "max_age", "internal",
}

func (r CloseReason) String() string {
	if r < numReasons {
		return reasonWords[r]
	}
	return "internal"
}

// expected reasons are part of normal life and logged at debug level.
func (r CloseReason) expected() bool {
	switch r {
	case ReasonClientEOF, ReasonBrokerEOF, ReasonIdle, ReasonDraining, ReasonMaxAge:
		return true
	}
	return false
}

var errMemory = errors.New("the client takes an answer too slowly while others wait for memory: raise limits.proxy_memory, or lower limits.fetch_upstream_max_bytes")

// closeLog keeps the log readable while a broker is down and ten thousand
// clients retry: one line per reason and ten seconds is a warning, the rest is told
// at debug level and counted. (The metric counts all.)
type closeLog struct {
	last    atomic.Int64 // unix nanoseconds of the last warning
	skipped atomic.Int64
}

const closeLogEvery = 10 * time.Second

// level of the log line about a connection closed now; skipped: how many lines
// since the last warning were not warnings.
func (c *closeLog) level(r CloseReason, now time.Time) (level slog.Level, skipped int64) {
	if r.expected() {
		return slog.LevelDebug, 0
	}
	last := c.last.Load()
	if now.UnixNano()-last < int64(closeLogEvery) || !c.last.CompareAndSwap(last, now.UnixNano()) {
		c.skipped.Add(1)
		return slog.LevelDebug, 0
	}
	return slog.LevelWarn, c.skipped.Swap(0)
}
