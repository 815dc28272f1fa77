package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const output = `goos: linux
pkg: example
BenchmarkBatch/stamp/1KiB-2         	     200	       80.0 ns/op	       0 B/op	       0 allocs/op
BenchmarkBatch/stamp/1KiB-2         	     200	       50.0 ns/op	       0 B/op	       0 allocs/op
BenchmarkBatch/stamp/1024KiB-2      	     200	      100.0 ns/op	       9 B/op	       2 allocs/op
PASS
`

func TestCheck(t *testing.T) {
	got, err := read(strings.NewReader(output))
	require.NoError(t, err)
	require.Len(t, got, 2)
	for text, want := range map[string]string{
		"allocs Batch/stamp/1KiB 0":                        "",
		"ratio Batch/stamp/1024KiB Batch/stamp/1KiB 2.01":  "",
		"ratio Batch/stamp/1024KiB Batch/stamp/1KiB 1.9":   "ABOVE",
		"allocs Batch/stamp/1024KiB 1":                     "ABOVE",
		"allocs Batch/renamed 1":                           "GONE",
		"ratio Batch/stamp/1KiB Batch/renamed 1  # a note": "GONE",
	} {
		s, err := parse(strings.NewReader(text))
		require.NoError(t, err)
		var out bytes.Buffer
		err = s.check(got, &out)
		require.Equal(t, want != "", err != nil, text)
		require.Contains(t, out.String(), want)
	}
}

func TestParse(t *testing.T) {
	s, err := parse(strings.NewReader(limits))
	require.NoError(t, err)
	require.NotEmpty(t, s.packages)
	require.Contains(t, s.pattern(), "Batch|")
	for _, bad := range []string{"allocs X", "ratio A 1", "allocs X many", "times X 1", ""} {
		_, err := parse(strings.NewReader(bad))
		require.Error(t, err, bad)
	}
}
