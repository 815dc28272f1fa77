// Package clients reads and writes with real Kafka clients as black boxes: Java's kafka-clients, librdkafka (through
// confluent-kafka for Python) and franz-go. All give the same form of result.
package clients

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// Read says what a client reads: partitions 0…Partitions-1 of one topic up to the end offsets of its start.
type Read struct {
	Bootstrap string
	Topic     string
	// Partitions is their number; 0 means 1.
	Partitions int
	Isolation  oracle.Isolation
	// From is "earliest" (also when empty), "offset:N", "timestamp:MS" or "group" (the group's commits).
	From string
	// Epoch goes with offset:N: the position is validated against it (nil: not).
	Epoch *int32
	// Reset is what happens to a position out of range: "earliest" (also when empty), "latest", "none".
	Reset string
	// Group is the consumer group; Subscribe joins it instead of assigning the partitions by hand.
	Group     string
	Subscribe bool
	// Commit commits what was read, with its leader epochs.
	Commit bool
	// CommitEvery also commits while reading, and before partitions are revoked; a commit that a rebalance forbids is
	// left out, and told. Only the Java client.
	CommitEvery time.Duration
	// Max ends the reading after so many records; 0: none. The Java client does not count what it gets a second time.
	Max int
	// Follow goes on at the end, for what comes: until Max, or Timeout, which then is no failure.
	Follow bool
	// Expect is how many records the caller waits for, for clients that don't tell when they are at the end
	// (franz-go passes over aborted and control records silently). They wait a little longer for one too many.
	Expect int
	// Timeout ends the reading; the result then says so. Default 60 s.
	Timeout time.Duration
	// Each is told of each record as it comes, one after the other; true ends the reading, which then is whole as it
	// is. With Follow only.
	Each func(oracle.Rec) (done bool)
	// Set are settings of the client by its own names.
	Set map[string]string
}

// each tells of a record.
func (r Read) each(rec oracle.Rec) (done bool) { return r.Follow && r.Each != nil && r.Each(rec) }

// Result is what a client saw.
type Result struct {
	Recs []oracle.Rec
	Meta []Meta
}

// Meta is an output line that is no record; What is its kind: start, end, position, committed, lag, for-time,
// truncation, out-of-range, timeout, commit-failed (a rebalance was on), offset (of ListOffsets, with Spec and Isolation), produced, deleted.
type Meta struct {
	What        string `json:"meta"`
	Partition   int32  `json:"partition"`
	Offset      int64  `json:"offset"`
	LeaderEpoch int32  `json:"leaderEpoch"`
	Timestamp   int64  `json:"timestamp"`
	Spec        string `json:"spec"`
	Isolation   string `json:"isolation"`
	Error       string `json:"error"`
	Message     string `json:"message"`
}

// Find is the first meta line of a kind for a partition.
func (r Result) Find(what string, partition int32) (Meta, bool) {
	for _, m := range r.Meta {
		if m.What == what && m.Partition == partition {
			return m, true
		}
	}
	return Meta{}, false
}

// TimedOut says that the client gave up waiting.
func (r Result) TimedOut() bool { _, ok := r.Find("timeout", 0); return ok }

// Of are a partition's records.
func (r Result) Of(partition int32) []oracle.Rec {
	var out []oracle.Rec
	for _, x := range r.Recs {
		if x.Partition == partition {
			out = append(out, x)
		}
	}
	return out
}

// Reader is one of the clients.
type Reader struct {
	Name string
	Read func(context.Context, Read) (Result, error)
	// ShownTimestamp is what the client makes of a record's timestamp.
	ShownTimestamp func(ms int64) int64
}

// Readers are all clients.
func Readers() []Reader {
	same := func(ms int64) int64 { return ms }
	return []Reader{
		{Name: "java", Read: JavaRead, ShownTimestamp: same},
		{Name: "librdkafka", Read: PythonRead, ShownTimestamp: same},
		{Name: "franz-go", Read: FranzRead, ShownTimestamp: franzTimestamp},
	}
}

// Shown is how the client shows recs.
func (r Reader) Shown(recs []oracle.Rec) []oracle.Rec {
	out := make([]oracle.Rec, len(recs))
	for i, x := range recs {
		if x.TimestampType == oracle.CreateTime {
			x.Timestamp = r.ShownTimestamp(x.Timestamp)
		}
		out[i] = x
	}
	return out
}

func (r Read) args() []string {
	a := []string{"read", "bootstrap=" + r.Bootstrap, "topic=" + r.Topic, "isolation=" + r.Isolation.String()}
	add := func(k, v string) {
		if v != "" {
			a = append(a, k+"="+v)
		}
	}
	number := func(k string, n int) {
		if n != 0 {
			add(k, strconv.Itoa(n))
		}
	}
	number("partitions", r.Partitions)
	number("max", r.Max)
	add("from", r.From)
	add("reset", r.Reset)
	add("group", r.Group)
	if r.Epoch != nil {
		add("epoch", strconv.Itoa(int(*r.Epoch)))
	}
	if r.Subscribe {
		add("subscribe", "true")
	}
	if r.Commit {
		add("commit", "true")
	}
	number("timeout", int(r.timeout()/time.Millisecond))
	number("commit-every", int(r.CommitEvery/time.Millisecond))
	if r.Follow {
		add("follow", "true")
	}
	for k, v := range r.Set {
		add("x."+k, v)
	}
	return a
}

func (r Read) timeout() time.Duration {
	if r.Timeout == 0 {
		return time.Minute
	}
	return r.Timeout
}

// run runs a program and returns its standard output. The context's end kills it.
func run(ctx context.Context, name string, args ...string) (*bytes.Buffer, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = testkafka.ChildAttr()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return &stdout, fmt.Errorf("clients: %s: %w: %s", name, err, lastLines(stderr.String(), 25))
	}
	return &stdout, nil
}

// runClient runs a client and reads its lines; each is told of records, and ends it by true.
func runClient(ctx context.Context, each func(oracle.Rec) bool, name string, args ...string) (res Result, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = testkafka.ChildAttr()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return res, fmt.Errorf("clients: %s: %w", name, err)
	}
	if err := cmd.Start(); err != nil {
		return res, fmt.Errorf("clients: %s: %w", name, err)
	}
	done, err := readLines(out, &res, each)
	if done || err != nil {
		cancel()
	}
	if ended := cmd.Wait(); err == nil && ended != nil && !done {
		err = ended
	}
	if err != nil {
		return res, fmt.Errorf("clients: %s: %w: %s", name, err, lastLines(stderr.String(), 25))
	}
	return res, nil
}

func readLines(out io.Reader, res *Result, each func(oracle.Rec) bool) (done bool, err error) {
	in := bufio.NewScanner(out)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		if !bytes.HasPrefix(in.Bytes(), []byte(`{"meta"`)) {
			rec, err := oracle.ParseLine(in.Bytes())
			if err != nil {
				return false, err
			}
			if res.Recs = append(res.Recs, rec); each(rec) {
				return true, nil
			}
			continue
		}
		var m Meta
		if err := json.Unmarshal(in.Bytes(), &m); err != nil {
			return false, fmt.Errorf("it printed %q: %w", in.Text(), err)
		}
		res.Meta = append(res.Meta, m)
	}
	return false, in.Err()
}

// versioned is a folder name for what is made of a source: trees with other sources, tested at the same time on one
// machine, must not take it away from one another.
func versioned(name, key string) string {
	return fmt.Sprintf("%s-%x", name, sha256.Sum256([]byte(key)))[:len(name)+13]
}

func lastLines(s string, n int) string {
	l := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(l[max(0, len(l)-n):], "\n")
}
