package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"
)

// report prints min, median and max over the rounds, and the ratios inside
// each round.
func (b *bench) report() error {
	byPeer := map[string][]result{}
	var peers []string
	for _, r := range b.results {
		if byPeer[r.Peer] == nil {
			peers = append(peers, r.Peer)
		}
		byPeer[r.Peer] = append(byPeer[r.Peer], r)
	}
	slices.Sort(peers)
	w := table.NewWriter()
	w.SetStyle(table.StyleLight)
	w.AppendHeader(table.Row{"peer", "MB/s (min, median, max)", "MB per CPU-second", "CPU-seconds per GB", "peak RSS MB"})
	for _, p := range peers {
		rs := byPeer[p]
		w.AppendRow(table.Row{
			p, spread(rs, "%.0f", func(r result) float64 { return r.MB / r.Seconds }),
			spread(rs, "%.0f", func(r result) float64 { return r.MB / r.CPU }),
			spread(rs, "%.2f", func(r result) float64 { return r.CPU / r.MB * 1000 }),
			spread(rs, "%.0f", func(r result) float64 { return float64(r.PeakRSS) / 1e6 }),
		})
	}
	fmt.Println(w.Render())
	var speed, cpu []float64
	for round := range b.s.rounds {
		a, okA := find(byPeer["lockstep"], round+1)
		c, okC := find(byPeer["kgo copier"], round+1)
		if okA && okC {
			speed = append(speed, c.Seconds/a.Seconds)
			cpu = append(cpu, c.CPU/a.CPU)
		}
	}
	fmt.Printf("lockstep against the copier, inside each round: %s times the speed, 1/%s of the CPU\n", list(speed), list(cpu))
	if b.s.out == "" {
		return nil
	}
	out, err := json.MarshalIndent(map[string]any{"machine": machine(), "settings": map[string]int{"mib": b.s.mib, "record": b.s.recordSize, "partitions": b.s.partitions, "rounds": b.s.rounds}, "results": b.results}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(b.s.out, append(out, '\n'), 0o644)
}

func find(rs []result, round int) (result, bool) {
	i := slices.IndexFunc(rs, func(r result) bool { return r.Round == round })
	if i < 0 {
		return result{}, false
	}
	return rs[i], true
}

func spread(rs []result, format string, f func(result) float64) string {
	v := make([]float64, len(rs))
	for i, r := range rs {
		v[i] = f(r)
	}
	slices.Sort(v)
	return fmt.Sprintf(format+"  "+format+"  "+format, v[0], v[len(v)/2], v[len(v)-1])
}

func list(v []float64) string {
	s := ""
	for i, x := range v {
		if i > 0 {
			s += ", "
		}
		s += fmt.Sprintf("%.2f", x)
	}
	return s
}
