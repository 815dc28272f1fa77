package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReferenceIsCurrent(t *testing.T) {
	have, err := os.ReadFile("../../docs/cli.md")
	require.NoError(t, err, "run: make docs")
	require.Equal(t, reference(root()), string(have), "docs/cli.md differs from the code: run make docs")
}
