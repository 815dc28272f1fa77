// Package check is `lockstep check`: it connects to both clusters and says
// what it found and what is missing, before a mirror is started.
package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/client"
	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
)

// Level of a finding.
type Level string

// The three levels: only Fail makes the check fail.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "FAIL"
)

// Finding is one line of the answer.
type Finding struct {
	Level  Level  `json:"level"`
	Where  string `json:"where"` // destination, or a mirror's name
	What   string `json:"what"`
	Detail string `json:"detail"`
}

// Failed tells whether a finding is a Fail.
func Failed(fs []Finding) bool {
	for _, f := range fs {
		if f.Level == Fail {
			return true
		}
	}
	return false
}

const (
	connectTimeout = 10 * time.Second
	stepTimeout    = 30 * time.Second
)

type checker struct {
	c        *config.Config
	findings []Finding
}

// Run checks everything it can reach; it stops early only when ctx ends.
func Run(ctx context.Context, c *config.Config) []Finding {
	k := &checker{c: c}
	dst := k.destination(ctx)
	if dst != nil {
		defer dst.cl.Close()
		if len(c.Mirrors) > 0 {
			k.ledgerRights(ctx, dst)
		}
	}
	for i := range c.Mirrors {
		if m := &c.Mirrors[i]; c.Instance.ID == "" && m.UncleanLeaderElection {
			k.add(Warn, m.Name, "instance.id", "it is not set, and unclean_leader_election is on: once an instance was killed, starts and recoveries wait for it under its old name until `lockstep forget`: set it to a name that outlives a restart")
		}
		k.mirror(ctx, &c.Mirrors[i], dst)
	}
	if len(c.Mirrors) == 0 {
		k.add(Warn, "mirrors", "none", "no mirror is configured: Lockstep is a plain proxy")
	}
	return k.findings
}

func (k *checker) add(l Level, where, what, format string, args ...any) {
	k.findings = append(k.findings, Finding{Level: l, Where: where, What: what, Detail: fmt.Sprintf(format, args...)})
}

// side is a cluster that could be reached.
type side struct {
	cl    *kgo.Client
	adm   *kadm.Client
	meta  kadm.Metadata
	where string
	opts  []kgo.Opt
}

// connect reaches a cluster and says what it is.
func (k *checker) connect(ctx context.Context, where string, bootstrap []string, opts []kgo.Opt) *side {
	cl, err := kgo.NewClient(append(opts, kgo.RetryTimeout(connectTimeout), kgo.DialTimeout(connectTimeout/2))...)
	if err != nil {
		k.add(Fail, where, "client", "%v", err)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	adm := kadm.NewClient(cl)
	meta, err := adm.BrokerMetadata(ctx)
	if err != nil {
		k.add(Fail, where, "reach", "%v can't be used: %v", bootstrap, explain(kconn.OfClient(cl, err)))
		cl.Close()
		return nil
	}
	s := &side{cl: cl, adm: adm, meta: meta, where: where, opts: opts}
	k.add(OK, where, "reach", "cluster id %s, brokers %v", meta.Cluster, meta.Brokers.NodeIDs())
	return s
}

// explain adds the remedy to what Go says about common mistakes.
func explain(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w (no answer in %s: is the address right, does the port speak TLS, is a firewall between?)", err, connectTimeout)
	}
	if errors.Is(err, kconn.ErrClosed) {
		return err
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w (the broker closed the connection: are the credentials right, does the port speak TLS?)", err)
	}
	switch kconn.Name(err) {
	case "certificate":
		return fmt.Errorf("%w: set tls.ca_file to what signed the broker's certificate, or tls.server_name to a name in it", err)
	case "credentials":
		return fmt.Errorf("%w: correct sasl.username and the password", err)
	case "refused":
		return fmt.Errorf("%w: nothing listens there", err)
	}
	return err
}

func (k *checker) destination(ctx context.Context) *side {
	const where = "destination"
	opts, sec, err := client.Destination(k.c.Destination)
	if err != nil {
		k.add(Fail, where, "config", "%v", err)
		return nil
	}
	s := k.connect(ctx, where, k.c.Destination.Bootstrap, opts)
	if s == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	k.versions(ctx, s, destinationNeeds)
	k.brokerPorts(s)
	k.groupTimeout(ctx, s)
	k.clusterRights(ctx, s)
	k.probe(ctx, s, sec)
	return s
}

func (k *checker) mirror(ctx context.Context, m *config.Mirror, dst *side) {
	opts, _, err := client.Source(m.Source)
	if err != nil {
		k.add(Fail, m.Name, "config", "%v", err)
		return
	}
	src := k.connect(ctx, m.Name, m.Source.Bootstrap, opts)
	if src == nil {
		return
	}
	defer src.cl.Close()
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	k.versions(ctx, src, sourceNeeds)
	if dst != nil && dst.meta.Cluster == src.meta.Cluster {
		k.add(Fail, m.Name, "loop", "source and destination are the same cluster (%s): correct source.bootstrap", src.meta.Cluster)
		return
	}
	k.topics(ctx, m, src, dst)
	k.groups(ctx, m, src, dst)
}
