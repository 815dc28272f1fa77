package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// docs/apis.md is protocol's table.
func TestApisPage(t *testing.T) {
	have, err := os.ReadFile("../../docs/apis.md")
	require.NoError(t, err)
	require.Equal(t, apis(), string(have), "docs/apis.md differs from protocol/table.go: run make docs")
}
