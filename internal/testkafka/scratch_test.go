package testkafka_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
)

// What a killed process left is gone with the next one; what is in use, and what others made, stays.
func TestScratch(t *testing.T) {
	root := t.TempDir()
	t.Setenv("TMPDIR", root)
	dead, foreign := filepath.Join(root, "x-1"), filepath.Join(root, "x-2")
	require.NoError(t, os.MkdirAll(filepath.Join(dead, "sub"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dead, ".in-use"), nil, 0o600))
	require.NoError(t, os.MkdirAll(foreign, 0o755))

	first, removeFirst, err := testkafka.Scratch("x")
	require.NoError(t, err)
	require.NoDirExists(t, dead)
	require.DirExists(t, foreign, "without a lock file it is nobody's business")
	second, removeSecond, err := testkafka.Scratch("x")
	require.NoError(t, err)
	require.DirExists(t, first, "it is in use")
	other, removeOther, err := testkafka.Scratch("y")
	require.NoError(t, err)
	defer removeOther()

	removeFirst()
	removeSecond()
	require.NoDirExists(t, first)
	require.NoDirExists(t, second)
	require.DirExists(t, other)
}
