package app

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/config"
)

// The log says it once at the start, for each mirror with which it matters: also
// where a verb, not the configuration, has switched the support on.
func TestNamelessIsTold(t *testing.T) {
	c := config.Default()
	c.Mirrors = []config.Mirror{{Name: "dc1"}, {Name: "dc2"}}
	said := func() string {
		var b bytes.Buffer
		warnNameless(slog.New(slog.NewTextHandler(&b, nil)), &c, func(m string) bool { return m == "dc2" })
		return b.String()
	}
	require.Contains(t, said(), "mirror=dc2")
	require.NotContains(t, said(), "mirror=dc1")
	c.Instance.ID = "host-1"
	require.Empty(t, said())
}
