package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func parse(t *testing.T, s string) *Config {
	t.Helper()
	c, err := Parse([]byte(s))
	require.NoError(t, err)
	return c
}

func TestChanges(t *testing.T) {
	a := parse(t, good)
	require.Empty(t, Changes(a, parse(t, good)))
	b := parse(t, strings.Replace(good, "32MiB", "16MiB", 1)+"    unclean_leader_election: true\n  - name: dc2\n    source: {bootstrap: [\"x:1\"]}\n    topics: {include: [a]}\nlog: {level: debug}\n")
	require.Equal(t, []string{"log.level", "mirrors[dc1].unclean_leader_election", "mirrors[dc1].fetch_max_bytes", "mirrors[dc2]"}, Changes(a, b))
	require.Contains(t, Changes(b, a), "mirrors[dc2]")
	require.True(t, Reloadable("log.level"))
	require.True(t, Reloadable("mirrors[dc1].unclean_leader_election"))
	require.True(t, Reloadable("mirrors[dc1].acks"))
	require.True(t, Reloadable("mirrors[dc1]"))
	require.False(t, Reloadable("instance.id"))
	require.False(t, Reloadable("listeners"))
}

func TestFingerprint(t *testing.T) {
	a, b := parse(t, good).Mirrors[0], parse(t, strings.Replace(good, "32MiB", "16MiB", 1)+"    bump_step: 5\n").Mirrors[0]
	fa, fb := a.Fingerprint(), b.Fingerprint()
	require.NotEqual(t, fa["bump_step"], fb["bump_step"])
	delete(fa, "bump_step")
	delete(fb, "bump_step")
	require.Equal(t, fa, fb, "what only one instance's speed depends on may differ")
}
