package app

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/internal/client"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
)

// A wrong password is noticed by every loop for itself: one warning for each
// cause and broker, once a minute, with the number of the others. Other causes are
// told each time.
func TestOneWarningForACause(t *testing.T) {
	var out bytes.Buffer
	h := quiet(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo})).(*quietHandler)
	now := time.Unix(1, 0)
	h.told.now = func() time.Time { return now }
	log := slog.New(h)
	refused := fmt.Errorf("login: %w", kconn.ErrCredentials)
	all := func() {
		for range 10 {
			log.Warn("source broker: will try again", "mirror", "dc1", "conn", "a:9092", "err", refused)
			log.Warn("source broker: will try again", "mirror", "dc1", "conn", "b:9092", "err", refused)
			log.With("mirror", "dc1").Warn("sync of topics failed", "err", fmt.Errorf("list topics: %w", kerr.SaslAuthenticationFailed))
			log.With("mirror", "dc1").WithGroup("g").Warn("sync of group offsets failed", "err", refused)
			log.Warn("destination metadata not refreshed", "err", fmt.Errorf("dial: %w", &client.HeldBackError{In: time.Second}))
		}
	}
	all()
	require.Equal(t, 4, strings.Count(out.String(), "level=WARN"), out.String())
	out.Reset()
	all()
	require.Empty(t, out.String())
	now = now.Add(quietEvery)
	all()
	require.Equal(t, 4, strings.Count(out.String(), "level=WARN"), out.String())
	require.Contains(t, out.String(), "more_like_it=19")
	out.Reset()
	for range 3 {
		log.Warn("source broker: will try again", "mirror", "dc1", "conn", "a:9092", "err", kconn.ErrClosed)
		log.Warn("no error at all")
		log.Error("told each time", "err", refused)
	}
	require.Equal(t, 9, strings.Count(out.String(), "\n"), out.String())
	require.NotContains(t, out.String(), "more_like_it")

	out.Reset()
	for range 20 { // a source that is away
		for _, cause := range []error{kconn.ErrRefused, kconn.ErrTimeout, kconn.ErrUnreachable} {
			log.Warn("source broker: will try again", "mirror", "dc1", "conn", "c:9092", "err", fmt.Errorf("dial: %w", cause))
			log.Warn("sync of topics failed", "mirror", "dc1", "err", cause)
			log.Warn("sync of group offsets failed", "mirror", "dc1", "err", cause)
		}
	}
	require.Equal(t, 9, strings.Count(out.String(), "level=WARN"), out.String())
	now = now.Add(quietEvery)
	log.Warn("sync of topics failed", "mirror", "dc1", "err", kconn.ErrRefused)
	require.Contains(t, out.String(), "more_like_it=19")

	debug := quiet(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	out.Reset()
	for range 3 {
		slog.New(debug).Warn("x", "err", errors.Join(errors.New("y"), kconn.ErrCertificate))
	}
	require.Equal(t, 2, strings.Count(out.String(), "level=DEBUG"), "nothing is lost at debug level")
}
