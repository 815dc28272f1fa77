package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

func points(t *testing.T) *Measured {
	m, err := load("measured.json")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(m.Points), 3)
	return m
}

// The model holds at every size that was measured: counts and bytes, within
// the factor that the page states.
func TestModelFitsMeasuredPoints(t *testing.T) {
	m := points(t)
	mod := NewModel(m, Assumptions())
	for _, pt := range m.Points {
		for _, c := range mod.Compare(pt) {
			require.LessOrEqualf(t, c.Off(), c.Factor, "%s at %d partitions: predicted %.0f, measured %.0f", c.What, pt.Partitions, c.Predicted, c.Measured)
		}
	}
}

// The constants in bytes are the code's: whoever changes a format measures anew.
func TestConstantsAreTheCodes(t *testing.T) {
	p := points(t).Parts
	r, c := typical("orders-000012", 42)
	cp, err := c.Encode()
	require.NoError(t, err)
	rec, err := r.Encode()
	require.NoError(t, err)
	meta, ask, answer := wireSizes()
	require.Equal(t, []float64{p.CheckpointBytes, p.RecordBytes, p.MetadataBytes, p.FetchAskBytes, p.FetchAnswerBytes},
		[]float64{recordSize(c.Key(), cp), recordSize(r.Key(), rec), meta, ask, answer},
		"run: go run ./bench/model -measure")
	require.EqualValues(t, ledger.Partitions, Today().LedgerPartitions)
}

// More instances than ledger partitions own nothing; what they read costs all
// the same.
func TestOwnersAreBounded(t *testing.T) {
	mod := NewModel(points(t), Assumptions())
	s := Target()
	s.Instances = 50
	fifty := mod.Predict(s, Today())
	s.Instances = 100
	hundred := mod.Predict(s, Today())
	require.Equal(t, 50.0, hundred.Owners)
	require.Equal(t, fifty.PerOwner, hundred.PerOwner)
	require.Greater(t, hundred.LedgerReads, 1.9*fifty.LedgerReads)
	s.Instances = 30
	require.Equal(t, 8000.0, mod.Predict(s, Today()).PerOwner, "the busiest has two of the fifty")
}

// The page and the charts in docs are those of the points.
func TestPageIsCurrent(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, write(points(t), dir))
	for _, f := range []string{"scaling.md", "scaling/check.svg", "scaling/ledger.svg", "scaling/cpu.svg", "scaling/times.svg"} {
		want, err := os.ReadFile(filepath.Join(dir, f))
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join("../../docs", f))
		require.NoError(t, err)
		require.Truef(t, bytes.Equal(want, got), "%s: run make model", f)
	}
}

// Frames are counted whole, however the bytes come.
func TestFrames(t *testing.T) {
	var stream []byte
	sizes := []int{14, 63, 64, 65, 4000, 20}
	for i, n := range sizes {
		b := make([]byte, n)
		binary.BigEndian.PutUint32(b, uint32(n-4))
		binary.BigEndian.PutUint32(b[8:], uint32(i))
		stream = append(stream, b...)
	}
	for _, step := range []int{1, 3, 64, 1 << 20} {
		var f frames
		var got []int
		for at := 0; at < len(stream); at += step {
			f.feed(stream[at:min(at+step, len(stream))], func(head []byte, size int64) {
				require.EqualValues(t, len(got), binary.BigEndian.Uint32(head[8:]))
				got = append(got, int(size))
			})
		}
		require.Equal(t, sizes, got)
	}
}
