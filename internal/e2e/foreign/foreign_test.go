package foreign_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/e2e/foreign"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// Every client through the proxy: a smoke of each, on one broker on either side, all languages at a time.
func TestClients(t *testing.T) {
	matrix(t, setup{
		name: "smoke", mirrored: []string{"transactions"},
		clients: func(c foreign.Client) bool { return !c.Long },
		cases:   func(c foreign.Case) bool { return true },
	})
}

type setup struct {
	name        string
	destination testkafka.Options
	mirrored    []string // kinds of content
	clients     func(foreign.Client) bool
	cases       func(foreign.Case) bool
}

// job is a driver and its clients, each with the mirrored topics whose codecs it knows.
type job struct {
	driver  foreign.Driver
	clients []foreign.Client
	checks  []*foreign.Checker
}

func matrix(t *testing.T, s setup) {
	src := kafka.Source(t)
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	t.Cleanup(cancel)
	s.destination.Name, s.destination.Props = "destination", map[string]string{
		// The new groups' members hear of an assignment with their heartbeat: 5 s by default.
		"group.consumer.min.heartbeat.interval.ms": "200", "group.consumer.heartbeat.interval.ms": "300",
		"group.share.min.heartbeat.interval.ms": "200", "group.share.heartbeat.interval.ms": "300",
	}
	dst := testkafka.Start(t, s.destination)
	recs, codecs := map[string][]oracle.Rec{}, map[string][]oracle.Codec{}
	var topics []foreign.Topic
	if only := os.Getenv("LOCKSTEP_FOREIGN_CASES"); only != "" { // while one looks for a fault
		s.cases = func(c foreign.Case) bool { return slices.Contains(strings.Split(only, ","), string(c)) }
	}
	for _, kind := range s.mirrored {
		topic := s.name + "-mirrored-" + kind
		k, err := content.Get(kind)
		require.NoError(t, err)
		require.NoError(t, k.Fill(ctx, src, topic))
		recs[topic], err = oracle.Dump(ctx, src.Bootstrap(), topic, 0, oracle.ReadCommitted)
		require.NoError(t, err)
		batches, err := oracle.Batches(ctx, src.Bootstrap(), topic, 0)
		require.NoError(t, err)
		for _, b := range batches {
			codecs[topic] = append(codecs[topic], b.Codec())
		}
		topics = append(topics, foreign.Topic{Name: topic, Count: len(recs[topic])})
	}
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{s.name + "-mirrored-.*"}})
	for _, m := range topics {
		l.WaitCaughtUp(ctx, m.Name, 1)
	}
	var brokers []string
	for i := range dst.Brokers() {
		brokers = append(brokers, l.BrokerAddr(i+1))
	}
	slices.Sort(brokers)

	var jobs []*job
	for _, c := range foreign.Clients() {
		if !s.clients(c) {
			continue
		}
		var mine []foreign.Topic
		for _, m := range topics {
			if !slices.ContainsFunc(codecs[m.Name], func(k oracle.Codec) bool { return !slices.Contains(c.Codecs, k) }) {
				mine = append(mine, m)
			}
		}
		require.NotEmpty(t, mine, c.Name)
		i := slices.IndexFunc(jobs, func(j *job) bool { return j.driver == c.Driver })
		if i < 0 {
			jobs, i = append(jobs, &job{driver: c.Driver}), len(jobs)
		}
		jobs[i].clients = append(jobs[i].clients, c)
		jobs[i].checks = append(jobs[i].checks, &foreign.Checker{
			Destination: dst.Bootstrap(), Proxy: l.Bootstrap(), Source: recs, Brokers: brokers,
			Job: foreign.Job{Bootstrap: l.Bootstrap(), Prefix: s.name, Mirrored: mine, Client: c.Name, Cases: slices.DeleteFunc(slices.Clone(c.Cases), func(k foreign.Case) bool { return !s.cases(k) })},
		})
	}
	// Subtests in parallel, and their failures told here.
	t.Run("all", func(t *testing.T) {
		for _, j := range jobs {
			t.Run(string(j.driver), func(t *testing.T) {
				t.Parallel()
				testkafka.Require(t, j.driver.Tools()...)
				run(ctx, t, j)
			})
		}
	})
}

// run runs one driver: a process for each client, all at a time.
func run(ctx context.Context, t *testing.T, j *job) {
	began := time.Now()
	require.NoError(t, j.driver.Install(ctx))
	if d := time.Since(began); d > 2*time.Second {
		t.Logf("%s installed in %v", j.driver, d.Round(time.Second))
	}
	for i, c := range j.clients {
		require.NoError(t, j.checks[i].Prepare(ctx, c))
	}
	var wg sync.WaitGroup
	results := make([][]foreign.Line, len(j.clients))
	errs := make([]error, len(j.clients))
	for i, check := range j.checks {
		wg.Go(func() { results[i], errs[i] = foreign.Run(ctx, j.driver, check.Job) })
	}
	wg.Wait()
	for i, c := range j.clients {
		for _, k := range j.checks[i].Job.Cases {
			t.Run(c.Name+"/"+string(k), func(t *testing.T) {
				require.NoError(t, j.checks[i].Check(ctx, c, k, results[i]))
				for _, l := range results[i] {
					if l.Case == k && l.Done {
						t.Logf("%.1fs", float64(l.Millis)/1000)
					}
				}
			})
		}
		if errs[i] != nil {
			t.Errorf("%s: %v", c.Name, errs[i])
		}
	}
}

// The table of docs/clients.md is the list of clients, and its versions are those that are pinned.
func TestClientsPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/clients.md")
	require.NoError(t, err)
	for _, c := range foreign.Clients() {
		row := "| " + c.Library + " |"
		for _, k := range foreign.Cases() {
			switch {
			case c.Has(k):
				row += " yes |"
			default:
				require.NotEmpty(t, c.Lacks[k], "%s: why not %s", c.Name, k)
				row += " - |"
			}
		}
		require.Contains(t, string(page), row+"\n")
	}
	for name, pin := range map[string][2]string{
		"java": {"java/pom.xml", "<kv>%s</kv>"}, "java-2.8": {"drivers.go", "\"%s\""},
		"librdkafka": {"python/requirements.txt", "confluent-kafka==%s\n"}, "librdkafka-old": {"python/requirements-old.txt", "confluent-kafka==%s\n"},
		"franz-go": {"golang/go.mod", "franz-go v%s\n"}, "sarama": {"golang/go.mod", "sarama v%s\n"}, "kafka-go": {"golang/go.mod", "kafka-go v%s\n"},
		"kafka-python": {"python/requirements.txt", "kafka-python==%s\n"}, "aiokafka": {"python/requirements.txt", "aiokafka==%s\n"},
		"kafkajs": {"node/package.json", "\"kafkajs\": \"%s\""},
	} {
		file, err := os.ReadFile(pin[0])
		require.NoError(t, err)
		i := slices.IndexFunc(foreign.Clients(), func(c foreign.Client) bool { return c.Name == name })
		version := regexp.MustCompile(`\d+\.\d+\.\d+`).FindString(foreign.Clients()[i].Library)
		require.Contains(t, string(file), fmt.Sprintf(pin[1], version), name)
	}
}
