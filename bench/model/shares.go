package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/google/pprof/profile"
)

// works are what CPU time is told apart by: the first whose function is on a
// stack has it.
var works = []struct{ name, function string }{
	{"look over the ledger after a change", "mirror.(*Manager).notice"},
	{"look for what to acknowledge", "ledger.(*Registrar).due"},
	{"renew the lease", "ledger.(*Registrar).renew"},
	{"read the ledger", "ledger.(*reader)"},
	{"write checkpoints", "mirror.(*Manager).checkpoints"},
	{"fetch", "mirror.(*fetcher).run"},
	{"produce", "mirror.(*writer).run"},
	{"partitions", "mirror.(*Partition).run"},
	{"metadata", "mirror.(*poller).run"},
	{"sync of topics", "mirror.(*source)"},
	{"sync of groups", "mirror.(*groupSync)"},
	{"group membership", "mirror.(*Owner)"},
	{"proxy", "lockstep/proxy."},
	{"garbage collection", "runtime.gcBgMarkWorker"},
	{"own clients (franz-go)", "franz-go/pkg/kgo"},
}

// shares sorts a CPU profile, in seconds.
func shares(b []byte) (map[string]float64, error) {
	p, err := profile.Parse(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("profile of Lockstep: %w", err)
	}
	out := map[string]float64{}
	for _, s := range p.Sample {
		name := "scheduler and other"
	search:
		for _, w := range works {
			for _, l := range s.Location {
				for _, line := range l.Line {
					if line.Function != nil && strings.Contains(line.Function.Name, w.function) {
						name = w.name
						break search
					}
				}
			}
		}
		out[name] += float64(s.Value[len(s.Value)-1]) / 1e9
	}
	return out, nil
}
