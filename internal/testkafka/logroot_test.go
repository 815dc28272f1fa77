package testkafka_test

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
)

// Brokers' logs lie in the folder that is asked for, or in memory, or, where there is no room, where temporary files are.
func TestLogRoot(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dir, where, remove, err := testkafka.LogRoot("x", math.MaxInt64)
	require.NoError(t, err)
	require.Equal(t, os.TempDir(), filepath.Dir(dir), "no memory is that large")
	require.Contains(t, where, "temporary files")
	remove()
	require.NoDirExists(t, dir)

	t.Setenv(testkafka.LogRootEnv, t.TempDir())
	dir, where, remove, err = testkafka.LogRoot("x", math.MaxInt64)
	require.NoError(t, err)
	require.Equal(t, os.Getenv(testkafka.LogRootEnv), filepath.Dir(dir))
	require.Contains(t, where, testkafka.LogRootEnv)
	remove()
	require.NoDirExists(t, dir)

	t.Setenv(testkafka.LogRootEnv, filepath.Join(dir, "missing"))
	_, _, _, err = testkafka.LogRoot("x", 1)
	require.ErrorContains(t, err, "missing")
}
