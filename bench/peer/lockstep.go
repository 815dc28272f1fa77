package peer

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
)

// Lockstep is a running instance.
type Lockstep struct {
	*Process
	Addr   string // bootstrap address of its proxy
	Admin  string // host:port
	Config string // its file
	ports  *testkafka.Ports
}

// LockstepOptions are what a scenario wants; the rest are defaults.
type LockstepOptions struct {
	Topics  []string // mirrored; empty: no mirror, the proxy alone
	Source  string   // where the source is reached; empty: directly
	Extra   string   // lines for the mirror, as "groups: {interval: 5s}"
	Profile string   // name for a CPU profile, if profiles are wanted
}

// StartLockstep starts an instance and waits until it is ready.
func StartLockstep(ctx context.Context, l *lab.Lab, o LockstepOptions) (_ *Lockstep, err error) {
	ports, err := testkafka.ReservePorts(8)
	if err != nil {
		return nil, err
	}
	ls := &Lockstep{Addr: ports.Addr(0), Admin: ports.Addr(1), ports: ports}
	defer func() {
		if err != nil {
			ports.Release()
		}
	}()
	if o.Source == "" {
		o.Source = l.Source.Addr(1)
	}
	text := fmt.Sprintf("listeners: [{address: %q, broker_ports: \"%d-%d\"}]\ndestination: {bootstrap: [%q]}\nadmin: {address: %q}\nlog: {level: warn}\n",
		ls.Addr, ports.First+2, ports.First+7, l.Dest.Addr(1), ls.Admin)
	if len(o.Topics) > 0 {
		var include []string
		for _, t := range o.Topics {
			include = append(include, fmt.Sprintf("%q", regexp.QuoteMeta(t)))
		}
		text += fmt.Sprintf("mirrors:\n  - name: bench\n    acks: %s\n    source: {bootstrap: [%q]}\n    topics: {include: [%s]}\n",
			l.Acks, o.Source, strings.Join(include, ", "))
		if o.Extra != "" {
			text += "    " + o.Extra + "\n"
		}
	}
	if ls.Config, err = tempFile(l, "lockstep-*.yaml", text); err != nil {
		return nil, err
	}
	args := []string{"serve", "--config", ls.Config}
	if o.Profile != "" {
		if path := l.Profile(o.Profile); path != "" {
			args = append(args, "--cpuprofile", path)
		}
	}
	if ls.Process, err = start(l, "lockstep", l.Program("lockstep"), args...); err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for ls.get(wait, "/readyz") == "" {
		if err := ls.Ended(); err != nil {
			if o.Extra != "" && strings.Contains(err.Error(), "unknown key") {
				return nil, fmt.Errorf("Lockstep with %q: %w in this build", o.Extra, ErrMissing)
			}
			return nil, err
		}
		if err := lab.Sleep(wait, 20*time.Millisecond); err != nil {
			ls.Process.End()
			return nil, fmt.Errorf("lockstep is not ready: %w\n%s", err, ls.Tail())
		}
	}
	return ls, nil
}

// End stops the instance and gives its ports back.
func (ls *Lockstep) End() {
	if ls.Alive() {
		ls.Process.End()
	}
	ls.ports.Release()
}

// get is the body of an answer with status 200, else "".
func (ls *Lockstep) get(ctx context.Context, path string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+ls.Admin+path, nil)
	if err != nil {
		return ""
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return ""
	}
	return string(b) + " "
}

// Shares is how many shares of the mirrors' work this instance has.
func (ls *Lockstep) Shares(ctx context.Context) int {
	return shares(ls.get(ctx, "/metrics"))
}

func shares(metrics string) int {
	m := regexp.MustCompile(`(?m)^lockstep_ledger_partitions_owned (\d+)`).FindStringSubmatch(metrics)
	if m == nil {
		return 0
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		return 0
	}
	return n
}

// Mirrors says whether this instance is the one that mirrors a topic (of one
// partition).
func (ls *Lockstep) Mirrors(ctx context.Context, topic string) bool {
	return regexp.MustCompile(`(?m)^lockstep_mirror_batches_total\{.*topic="` + regexp.QuoteMeta(topic) + `".*\} [1-9]`).
		MatchString(ls.get(ctx, "/metrics"))
}
