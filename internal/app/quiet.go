package app

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/internal/client"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
)

// quietEvery is how often a cause that lasts is told of one broker or mirror.
const quietEvery = time.Minute

// quietHandler keeps the log readable while a password or a certificate is wrong,
// or a cluster is away: every loop of Lockstep notices it for itself, and tries
// again and again. Of the warnings with one such cause, about one broker of one
// mirror, one a minute stays a warning, with the number of those that did not; they
// are told at debug level. Of a cluster that is away each kind of warning is told.
type quietHandler struct {
	slog.Handler
	mirror string // attribute of the logger
	told   *toldCauses
}

type toldCauses struct {
	mu   sync.Mutex
	now  func() time.Time
	last map[toldKey]*told
}

type toldKey struct{ cause, mirror, broker, msg string }

type told struct {
	at      time.Time
	skipped int
}

// maxTold bounds the keys; when there are more all begin anew.
const maxTold = 1000

func quiet(h slog.Handler) slog.Handler {
	return &quietHandler{Handler: h, told: &toldCauses{now: time.Now, last: map[toldKey]*told{}}}
}

// Handle implements slog.Handler.
func (h *quietHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		if key, ok := h.key(r); ok {
			skipped, warn := h.told.note(key)
			switch {
			case warn && skipped > 0:
				r = r.Clone()
				r.AddAttrs(slog.Int("more_like_it", skipped))
			case !warn && !h.Enabled(ctx, slog.LevelDebug):
				return nil
			case !warn:
				r = r.Clone()
				r.Level = slog.LevelDebug
			}
		}
	}
	return h.Handler.Handle(ctx, r) //nolint:wrapcheck // a handler's error is its caller's
}

// key of a warning whose cause lasts.
func (h *quietHandler) key(r slog.Record) (key toldKey, ok bool) {
	key.mirror = h.mirror
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "err":
			if err, isErr := a.Value.Any().(error); isErr {
				key.cause = causeOf(err)
			}
		case "mirror":
			key.mirror = a.Value.String()
		case "conn", "broker":
			key.broker = a.Value.String()
		}
		return true
	})
	switch key.cause {
	case "refused", "timeout", "unreachable":
		key.msg = r.Message
	}
	return key, key.cause != ""
}

// causeOf is empty for what is told each time.
func causeOf(err error) string {
	var held *client.HeldBackError
	if errors.As(err, &held) || errors.Is(err, kerr.SaslAuthenticationFailed) {
		return "credentials"
	}
	switch name := kconn.Name(err); name {
	case "credentials", "sasl_mechanism", "tls_mismatch", "certificate", "refused", "timeout", "unreachable":
		return name
	}
	return ""
}

// note says whether a warning is told, and how many were not since the last one.
func (t *toldCauses) note(key toldKey) (skipped int, warn bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, last := t.now(), t.last[key]
	if last != nil && now.Sub(last.at) < quietEvery {
		last.skipped++
		return 0, false
	}
	if last != nil {
		skipped = last.skipped
	} else if len(t.last) >= maxTold {
		clear(t.last)
	}
	t.last[key] = &told{at: now}
	return skipped, true
}

// WithAttrs implements slog.Handler.
func (h *quietHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	out := *h
	out.Handler = h.Handler.WithAttrs(attrs)
	for _, a := range attrs {
		if a.Key == "mirror" {
			out.mirror = a.Value.String()
		}
	}
	return &out
}

// WithGroup implements slog.Handler.
func (h *quietHandler) WithGroup(name string) slog.Handler {
	out := *h
	out.Handler = h.Handler.WithGroup(name)
	return &out
}
