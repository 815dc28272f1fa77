//go:build long

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
	"github.com/lockstep-kafka/lockstep/internal/verify"
)

// soakTopics and their numbers of partitions.
var soakTopics = []struct {
	name       string
	partitions int32
	compacted  bool
	configs    map[string]string
}{
	{"soak-plain", 4, false, nil},
	{"soak-txn", 3, false, nil},
	{"soak-large", 2, false, map[string]string{"max.message.bytes": "2000000"}},
	{"soak-compact", 2, true, map[string]string{
		"cleanup.policy": "compact", "segment.ms": "5000", "min.cleanable.dirty.ratio": "0.01", "min.compaction.lag.ms": "0",
	}},
}

const soakGroup = "soak-group"

// TestSoak: three brokers on each side, three Locksteps, load of several kinds, and all the while random kills, pauses
// and restarts of Locksteps and of brokers, and clean leader elections on both sides. In the end source and virtual log
// are equal through every instance, a reader that was there all the time has seen each record once, and the offsets of
// a group that consumed on the source are right. LOCKSTEP_SOAK is how long (10m), LOCKSTEP_SOAK_SEED repeats a run's
// faults.
func TestSoak(t *testing.T) {
	length, seed := 10*time.Minute, uint64(time.Now().UnixNano())
	if s := os.Getenv("LOCKSTEP_SOAK"); s != "" {
		var err error
		length, err = time.ParseDuration(s)
		require.NoError(t, err)
	}
	if s := os.Getenv("LOCKSTEP_SOAK_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("to repeat: LOCKSTEP_SOAK=%v LOCKSTEP_SOAK_SEED=%d", length, seed)
	ctx := withTimeout(t, length+10*time.Minute)
	src := testkafka.Start(t, testkafka.Options{Name: "source", Brokers: 3})
	dst := testkafka.Start(t, testkafka.Options{Name: "destination", Brokers: 3})
	for _, topic := range soakTopics {
		createReplicated(ctx, t, src, topic.name, topic.partitions, topic.configs)
	}
	f := e2e.StartFleet(t, &binary, e2e.Setup{
		Source: src, Destination: dst, Include: []string{"soak-.*"},
		Mirror: []string{"replication_factor: 3", "groups:", "  interval: 2s"},
	}, 3)
	s := &soak{T: t, ctx: ctx, src: src, dst: dst, f: f}
	load := s.load()
	reader := startStrictReader(t, f.Bootstrap())
	group := groupClient(t, src.Bootstrap(), kgo.ConsumerGroup(soakGroup), kgo.ConsumeTopics("soak-plain", "soak-txn"),
		kgo.AutoCommitInterval(time.Second), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	grouped := make(chan struct{})
	go func() {
		defer close(grouped)
		for !group.PollFetches(ctx).IsClientClosed() {
			if ctx.Err() != nil {
				return
			}
		}
	}()

	chaos, end := context.WithTimeout(ctx, length)
	defer end()
	var brokers sync.WaitGroup
	var brokersErr error
	brokers.Go(func() { brokersErr = s.breakBrokers(chaos, rand.New(rand.NewPCG(seed, 1))) })
	s.breakLocksteps(chaos, rand.New(rand.NewPCG(seed, 2)))
	brokers.Wait()
	require.NoError(t, brokersErr)

	// Everything is well again; the rest has to come by itself.
	t.Logf("%d records acknowledged", load.stop())
	for _, topic := range soakTopics {
		for p := range topic.partitions {
			require.NoError(t, content.WaitDecided(ctx, src.Bootstrap(), topic.name, p))
		}
	}
	for _, topic := range soakTopics {
		for _, l := range f {
			l.WaitCaughtUp(ctx, topic.name, topic.partitions)
		}
		f[0].WaitState(ctx, topic.name, int(topic.partitions), "MIRRORING")
	}
	s.compare()
	reader.check(ctx, t, src)

	require.NoError(t, group.CommitUncommittedOffsets(ctx))
	group.Close()
	<-grouped
	want, err := admin(t, src).FetchOffsets(ctx, soakGroup)
	require.NoError(t, err)
	require.NotEmpty(t, want)
	to := kadm.NewClient(groupClient(t, f[1].Bootstrap()))
	until(ctx, t, "the group's offsets", func() bool {
		got, err := to.FetchOffsets(ctx, soakGroup)
		same := err == nil
		want.Each(func(w kadm.OffsetResponse) {
			g, ok := got.Lookup(w.Topic, w.Partition)
			same = same && ok && g.At == w.At && g.LeaderEpoch == w.LeaderEpoch
		})
		return same
	})
}

func createReplicated(ctx context.Context, t *testing.T, c *testkafka.Cluster, topic string, partitions int32, configs map[string]string) {
	t.Helper()
	conf := map[string]*string{}
	for k, v := range configs {
		conf[k] = kadm.StringPtr(v)
	}
	_, err := admin(t, c).CreateTopic(ctx, partitions, int16(c.Brokers()), conf, topic)
	require.NoError(t, err)
	for p := range partitions {
		require.NoError(t, content.WaitLeader(ctx, c.Bootstrap(), topic, p, func(q oracle.Partition) bool { return q.Addr != "" }))
	}
}

type soak struct {
	*testing.T
	ctx      context.Context
	src, dst *testkafka.Cluster
	f        e2e.Fleet
}

// sleep waits for a random time.
func sleep(ctx context.Context, rnd *rand.Rand, from, to time.Duration) {
	wait(ctx, from+time.Duration(rnd.Int64N(int64(to-from))))
}

// breakLocksteps harms instances until ctx ends, and leaves all of them running. The sequence is the seed's.
func (s *soak) breakLocksteps(ctx context.Context, rnd *rand.Rand) {
	s.Helper()
	for {
		sleep(ctx, rnd, 2*time.Second, 8*time.Second)
		if ctx.Err() != nil {
			return
		}
		i := rnd.IntN(len(s.f))
		l, other := s.f[i], s.f[(i+1)%len(s.f)]
		switch what := rnd.IntN(6); what {
		case 0:
			s.Logf("%s: killed, started again later", l.ID())
			l.Kill9()
			sleep(ctx, rnd, time.Second, 15*time.Second)
			l.Launch()
		case 1:
			s.Logf("%s: killed and started", l.ID())
			l.Restart()
		case 2:
			s.Logf("%s: frozen", l.ID())
			l.Pause()
			sleep(ctx, rnd, 500*time.Millisecond, 15*time.Second)
			l.Continue()
		case 3:
			s.Logf("%s: stopped in order", l.ID())
			l.Stop()
			sleep(ctx, rnd, 0, 3*time.Second)
			l.Launch()
		case 4:
			s.Logf("%s: frozen, %s: killed meanwhile", l.ID(), other.ID())
			l.Pause()
			sleep(ctx, rnd, 500*time.Millisecond, 8*time.Second)
			other.Kill9()
			sleep(ctx, rnd, 500*time.Millisecond, 4*time.Second)
			l.Continue()
			other.Launch()
		case 5:
			s.Logf("all killed")
			for _, l := range s.f {
				l.Kill9()
			}
			for _, l := range s.f {
				l.Launch()
			}
		}
	}
}

// breakBrokers harms one broker at a time of either side until ctx ends, and leaves all running. It goes on when every
// replica is in sync again, so that all elections are clean.
func (s *soak) breakBrokers(ctx context.Context, rnd *rand.Rand) error {
	for sleep(ctx, rnd, 3*time.Second, 10*time.Second); ctx.Err() == nil; sleep(ctx, rnd, 3*time.Second, 10*time.Second) {
		name, c := "source", s.src
		if rnd.IntN(2) == 1 {
			name, c = "destination", s.dst
		}
		id := 1 + rnd.IntN(c.Brokers())
		var err error
		switch rnd.IntN(4) {
		case 0:
			s.Logf("%s broker %d: killed", name, id)
			err = c.Kill(id)
			sleep(ctx, rnd, 0, 5*time.Second)
			if err == nil {
				err = c.StartBroker(s.ctx, id)
			}
		case 1:
			s.Logf("%s broker %d: stopped in order", name, id)
			err = c.Stop(id)
			sleep(ctx, rnd, 0, 3*time.Second)
			if err == nil {
				err = c.StartBroker(s.ctx, id)
			}
		case 2:
			s.Logf("%s broker %d: frozen", name, id)
			err = c.Pause(id)
			sleep(ctx, rnd, 300*time.Millisecond, 6*time.Second)
			if err == nil {
				err = c.Continue(id)
			}
		case 3:
			topic := soakTopics[rnd.IntN(len(soakTopics))].name
			s.Logf("%s: leaders of %s move", name, topic)
			err = moveLeaders(s.ctx, c, topic)
		}
		if err == nil {
			err = waitInSync(s.ctx, c)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// moveLeaders lets the next replica of each partition lead: clean elections.
func moveLeaders(ctx context.Context, c *testkafka.Cluster, topic string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...))
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	return oracle.Retry(ctx, func() error {
		ts, err := adm.ListTopics(ctx, topic)
		if err != nil {
			return err
		}
		var req kadm.AlterPartitionAssignmentsReq
		for _, p := range ts[topic].Partitions.Sorted() {
			if len(p.Replicas) > 1 {
				req.Assign(topic, p.Partition, append(append([]int32{}, p.Replicas[1:]...), p.Replicas[0]))
			}
		}
		if _, err := adm.AlterPartitionAssignments(ctx, req); err != nil {
			return err
		}
		_, err = adm.ElectLeaders(ctx, kadm.ElectPreferredReplica, nil)
		return err
	})
}

// waitInSync waits until every replica of every partition is in sync.
func waitInSync(ctx context.Context, c *testkafka.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...))
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	for {
		out := 0
		ts, err := adm.ListTopicsWithInternal(ctx)
		for _, topic := range ts {
			for _, p := range topic.Partitions {
				if len(p.ISR) < len(p.Replicas) || p.Leader < 0 {
					out++
				}
			}
		}
		if err == nil && len(ts) > 0 && out == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d partitions are not in sync: %w", out, ctx.Err())
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// soakLoad writes until stop. A producer that fails, as brokers are killed under it, is replaced: what counts is what
// then is in the log.
type soakLoad struct {
	s      *soak
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	acked  int
}

func (s *soak) load() *soakLoad {
	ctx, cancel := context.WithCancel(s.ctx)
	w := &soakLoad{s: s, cancel: cancel}
	random := rand.New(rand.NewPCG(1, 2)) // of the large writer alone
	noise := make([]byte, 300<<10)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	// Small batches, single records too; keys in every partition.
	w.run(ctx, "soak-plain", 4, 10*time.Millisecond, nil, func(i int) (int, []byte, []byte) {
		return 1 + i%7, fmt.Appendf(nil, "k%d", i%100), fmt.Appendf(nil, "plain %d", i)
	})
	w.run(ctx, "soak-txn", 3, 50*time.Millisecond, []kgo.Opt{kgo.TransactionalID("soak"), kgo.TransactionTimeout(20 * time.Second)}, func(i int) (int, []byte, []byte) {
		return 3, nil, fmt.Appendf(nil, "txn %d", i)
	})
	w.run(ctx, "soak-large", 2, 2*time.Second, []kgo.Opt{kgo.ProducerBatchMaxBytes(1 << 20), kgo.ProducerBatchCompression(kgo.NoCompression())}, func(i int) (int, []byte, []byte) {
		return 1 + i%2, fmt.Appendf(nil, "large %d", i), noise[:len(noise)-i%1000]
	})
	w.run(ctx, "soak-compact", 2, 20*time.Millisecond, nil, func(i int) (int, []byte, []byte) {
		value := fmt.Appendf(nil, "compacted %d", i)
		if i%11 == 0 {
			value = nil
		}
		return 1 + i%3, fmt.Appendf(nil, "k%d", (i*i)%41), value
	})
	return w
}

// run writes n records of a kind to every partition, again and again.
func (w *soakLoad) run(ctx context.Context, topic string, partitions int32, every time.Duration, opts []kgo.Opt, kind func(i int) (n int, key, value []byte)) {
	opts = append([]kgo.Opt{
		kgo.SeedBrokers(w.s.src.Seeds()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(5 * time.Millisecond),
		kgo.RetryTimeout(time.Minute), kgo.MetadataMinAge(100 * time.Millisecond),
	}, opts...)
	transactional := topic == "soak-txn"
	w.wg.Go(func() {
		for i := 0; ctx.Err() == nil; {
			cl, err := kgo.NewClient(opts...)
			if err != nil {
				w.s.Error(err)
				return
			}
			for err == nil && ctx.Err() == nil {
				wait(ctx, every)
				err = w.round(cl, topic, partitions, transactional, i, kind)
				i++
			}
			cl.Close()
			if err != nil {
				w.s.Logf("producer of %s, round %d: %v; a new one begins", topic, i, err)
			}
		}
	})
}

func (w *soakLoad) round(cl *kgo.Client, topic string, partitions int32, transactional bool, i int, kind func(i int) (n int, key, value []byte)) error {
	// It finishes what it began.
	ctx, cancel := context.WithTimeout(w.s.ctx, 90*time.Second)
	defer cancel()
	if transactional {
		if err := cl.BeginTransaction(); err != nil {
			return err
		}
	}
	n, key, value := kind(i)
	var rs []*kgo.Record
	for p := range partitions {
		for range n {
			rs = append(rs, &kgo.Record{Topic: topic, Partition: p, Key: key, Value: value})
		}
	}
	err := cl.ProduceSync(ctx, rs...).FirstErr()
	if transactional {
		how := kgo.TryCommit
		if err != nil || i%4 == 0 {
			how = kgo.TryAbort
		}
		if e := cl.EndTransaction(ctx, how); err == nil {
			err = e
		}
	}
	if err == nil {
		w.mu.Lock()
		w.acked += len(rs)
		w.mu.Unlock()
	}
	return err
}

func (w *soakLoad) stop() int {
	w.cancel()
	w.wg.Wait()
	// What a failed transactional producer left open.
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.s.src.Seeds()...), kgo.TransactionalID("soak"))
	require.NoError(w.s, err)
	defer cl.Close()
	_, _, err = cl.ProducerID(w.s.ctx)
	require.NoError(w.s, err)
	return w.acked
}

// strictReader reads the topics that are not compacted through the Locksteps, from the beginning and all the time: as
// nothing is ever cut here, each record comes once and in order.
type strictReader struct {
	cl     *kgo.Client
	done   chan struct{}
	mu     sync.Mutex
	seen   map[string]map[int32][]seenRec
	faults []string
}

type seenRec struct {
	offset int64
	sum    uint32
}

func startStrictReader(t *testing.T, bootstrap string) *strictReader {
	t.Helper()
	from := map[string]map[int32]kgo.Offset{}
	r := &strictReader{done: make(chan struct{}), seen: map[string]map[int32][]seenRec{}}
	for _, topic := range soakTopics {
		if !topic.compacted {
			from[topic.name], r.seen[topic.name] = map[int32]kgo.Offset{}, map[int32][]seenRec{}
			for p := range topic.partitions {
				from[topic.name][p] = kgo.NewOffset().At(0)
			}
		}
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.ConsumePartitions(from), kgo.MetadataMinAge(100*time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), kgo.FetchMaxWait(500*time.Millisecond))
	require.NoError(t, err)
	r.cl = cl
	t.Cleanup(r.close)
	go r.run()
	return r
}

func (r *strictReader) close() { r.cl.Close(); <-r.done }

func (r *strictReader) run() {
	defer close(r.done)
	for {
		fs := r.cl.PollFetches(context.Background())
		if fs.IsClientClosed() {
			return
		}
		r.mu.Lock()
		for _, e := range fs.Errors() {
			// What a broker's answer says, or what the client makes of it; connections break all the time here.
			if told, lost := new(kerr.Error), new(kgo.ErrDataLoss); errors.As(e.Err, &told) || errors.As(e.Err, &lost) {
				at := int64(-1)
				if seen := r.seen[e.Topic][e.Partition]; len(seen) > 0 {
					at = seen[len(seen)-1].offset
				}
				r.faults = append(r.faults, fmt.Sprintf("%s: %s-%d behind offset %d: %v", time.Now().UTC().Format(time.RFC3339Nano), e.Topic, e.Partition, at, e.Err))
			}
		}
		fs.EachRecord(func(k *kgo.Record) {
			seen := r.seen[k.Topic][k.Partition]
			if n := len(seen); n > 0 && seen[n-1].offset >= k.Offset {
				r.faults = append(r.faults, fmt.Sprintf("%s-%d: offset %d after %d", k.Topic, k.Partition, k.Offset, seen[n-1].offset))
			}
			r.seen[k.Topic][k.Partition] = append(seen, seenRec{k.Offset, crc32.ChecksumIEEE(k.Value)})
		})
		r.mu.Unlock()
	}
}

// check waits until the reader is at the end, and compares what it saw with the source.
func (r *strictReader) check(ctx context.Context, t *testing.T, src *testkafka.Cluster) {
	t.Helper()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		assert.Empty(t, r.faults, "what the reader was told")
	}()
	for topic, partitions := range r.seen {
		for p := range soakPartitions(topic) {
			recs, err := oracle.Dump(ctx, src.Bootstrap(), topic, p, oracle.ReadCommitted)
			require.NoError(t, err)
			want := make([]seenRec, len(recs))
			for i, rec := range recs {
				want[i] = seenRec{rec.Offset, crc32.ChecksumIEEE(rec.Value)}
			}
			var got []seenRec
			wctx, cancel := context.WithTimeout(ctx, time.Minute)
			for {
				r.mu.Lock()
				got = partitions[p]
				r.mu.Unlock()
				if len(got) >= len(want) || wctx.Err() != nil {
					break
				}
				wait(wctx, 100*time.Millisecond)
			}
			cancel()
			for i := range min(len(want), len(got)) {
				require.Equal(t, want[i], got[i], "%s-%d, record %d as the reader saw it", topic, p, i)
			}
			require.Len(t, got, len(want), "%s-%d: records that the reader saw", topic, p)
		}
	}
}

func soakPartitions(topic string) int32 {
	for _, x := range soakTopics {
		if x.name == topic {
			return x.partitions
		}
	}
	return 0
}

// compare reads everything at every instance, as `lockstep verify` does: on the compacted topics the two cleaners run at
// different times.
func (s *soak) compare() {
	s.Helper()
	names := make([]string, len(soakTopics))
	for i, topic := range soakTopics {
		names[i] = topic.name
	}
	for _, l := range s.f {
		got, err := verify.Run(s.ctx, verify.Options{
			Source: []kgo.Opt{kgo.SeedBrokers(s.src.Seeds()...)}, Destination: []kgo.Opt{kgo.SeedBrokers(l.Bootstrap())},
			Topics: names, CaughtUp: true,
		})
		require.NoError(s, err)
		for _, p := range got.Partitions {
			if p.Outcome != verify.Equal {
				s.Errorf("%s-%d through %s: %s %s %+v", p.Topic, p.Partition, l.ID(), p.Outcome, p.Error, p.Difference)
			}
		}
		require.Equal(s, verify.Equal, got.Outcome)
		s.Logf("%s: %d records equal", l.ID(), got.Records)
	}
}
