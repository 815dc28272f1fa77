package testkafka

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// Cluster is a running cluster on 127.0.0.1, KRaft or, of an old version, with ZooKeeper in the controller's place. Its methods may be called from several goroutines.
type Cluster struct {
	opts  Options
	dir   string
	ports *Ports
	jvm   []string // java's arguments up to the class path, inclusive

	mu    sync.Mutex
	nodes map[int]*node
}

type node struct {
	id   int
	dir  string
	addr string
	main string   // the class
	jvm  []string // java's arguments up to the class path, inclusive
	proc *Process // nil until the first launch
}

const kafkaMain = "kafka.Kafka"

// Up starts a cluster whose files live under dir and waits until every broker serves. The first call on a machine
// fetches the jars (minutes). Close ends it; should this process die, the kernel does.
func Up(ctx context.Context, dir string, opts Options) (*Cluster, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if strings.ContainsAny(dir, ",") {
		return nil, fmt.Errorf("testkafka: folder %q: Kafka takes a comma in log.dirs for a separator (is there one in the test's name?)", dir)
	}
	kit, err := kitFor(ctx, opts.Version, opts.Logf)
	if err != nil {
		return nil, err
	}
	return up(ctx, dir, opts, kit)
}

func up(ctx context.Context, dir string, opts Options, k kit) (*Cluster, error) {
	ports, err := ReservePorts(opts.Brokers + 1)
	if err != nil {
		return nil, err
	}
	c := &Cluster{opts: opts, dir: filepath.Join(dir, opts.Name), ports: ports, nodes: map[int]*node{}}
	c.jvm = k.jvm(opts)
	began := time.Now()
	if err := c.begin(ctx, k); err != nil {
		err = fmt.Errorf("testkafka: cluster %s: %w\n%s", opts.Name, err, c.LogTail(20))
		c.Close()
		return nil, err
	}
	opts.Logf("kafka %s: cluster %s up in %.1fs: %s", opts.Version, opts.Name, time.Since(began).Seconds(), c.Bootstrap())
	return c, nil
}

func (c *Cluster) begin(ctx context.Context, k kit) error {
	if withZooKeeper(c.opts.Version) {
		return c.beginZooKeeper(ctx)
	}
	cluster := randomID()
	ids := []int{1}
	if c.opts.Brokers > 1 {
		ids = []int{ControllerID}
		for i := range c.opts.Brokers {
			ids = append(ids, i+1)
		}
	}
	for _, id := range ids {
		if err := c.prepare(id, ids[0], cluster, k); err != nil {
			return err
		}
	}
	for _, id := range ids {
		if err := c.launch(id); err != nil {
			return err
		}
	}
	for _, id := range ids {
		if err := c.waitServing(ctx, id, c.brokerIDs()); err != nil {
			return err
		}
	}
	return nil
}

// prepare writes a node's settings and what StorageTool's format would write, without paying a JVM for it.
func (c *Cluster) prepare(id, controller int, clusterID string, k kit) error {
	n := &node{id: id, dir: nodeDir(c.dir, id), main: kafkaMain, jvm: c.jvm}
	logs := c.LogDir(id)
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	broker, quorum := c.ports.Addr(id%ControllerID), c.ports.Addr(0)
	n.addr = broker
	rf := strconv.Itoa(min(3, c.opts.Brokers))
	p := commonProps()
	maps.Copy(p, map[string]string{
		"node.id": strconv.Itoa(id), "log.dirs": logs,
		"controller.quorum.voters":       fmt.Sprintf("%d@%s", controller, quorum),
		"controller.listener.names":      "CONTROLLER",
		"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"default.replication.factor":     rf, "offsets.topic.replication.factor": rf,
		"transaction.state.log.replication.factor": rf, "share.coordinator.state.topic.replication.factor": rf,
	})
	var roles, listeners []string
	if id != ControllerID {
		roles, listeners = append(roles, "broker"), append(listeners, "PLAINTEXT://"+broker)
		p["advertised.listeners"], p["inter.broker.listener.name"] = "PLAINTEXT://"+broker, "PLAINTEXT"
	}
	if id == 1 {
		for _, l := range c.opts.Listeners {
			listeners = append(listeners, l.Name+"://"+l.Listen)
			p["advertised.listeners"] += "," + l.Name + "://" + l.Advertised
			p["listener.security.protocol.map"] += "," + l.Name + ":" + cmp.Or(l.Protocol, "PLAINTEXT")
		}
	}
	if id == controller {
		roles, listeners = append(roles, "controller"), append(listeners, "CONTROLLER://"+quorum)
	}
	p["process.roles"], p["listeners"] = strings.Join(roles, ","), strings.Join(listeners, ",")
	maps.Copy(p, c.opts.Props)
	if err := writeProps(c.PropsFile(id), p); err != nil {
		return err
	}
	meta := map[string]string{"version": "1", "cluster.id": clusterID, "node.id": p["node.id"], "directory.id": randomID()}
	if err := writeProps(filepath.Join(logs, "meta.properties"), meta); err != nil {
		return err
	}
	if id == controller {
		if err := os.WriteFile(filepath.Join(logs, "bootstrap.checkpoint"), k.checkpoint, 0o644); err != nil {
			return fmt.Errorf("bootstrap checkpoint: %w", err)
		}
	}
	c.nodes[id] = n
	return nil
}

func (c *Cluster) launch(id int) error {
	n, err := c.node(id)
	if err != nil {
		return err
	}
	tmp, err := JVMTemp(filepath.Join(n.dir, "tmp"))
	if err != nil {
		return err
	}
	c.mu.Lock()
	args := append(append([]string{tmp}, n.jvm...), n.main, c.PropsFile(id))
	c.mu.Unlock()
	cmd := exec.Command("java", args...)
	cmd.Dir = n.dir
	p, err := StartProcess(cmd, filepath.Join(n.dir, "out.log"))
	if err != nil {
		return err
	}
	c.mu.Lock()
	n.proc = p
	c.mu.Unlock()
	return nil
}

// waitServing waits until node id is in its own metadata together with want: then it is unfenced and serves.
// A controller of its own only has to be alive: the brokers don't register without it.
func (c *Cluster) waitServing(ctx context.Context, id int, want []int) error {
	if id == ControllerID {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.opts.StartTimeout)
	defer cancel()
	n, err := c.node(id)
	if err != nil {
		return err
	}
	proc := c.proc(id)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		seen, err := oracle.BrokerIDs(ctx, n.addr)
		switch missing := missing(want, seen); {
		case err != nil:
			last = err
		case len(missing) > 0:
			last = fmt.Errorf("brokers %v are not in its metadata", missing)
		default:
			return nil
		}
		select {
		case <-proc.done:
			return fmt.Errorf("node %d died at its start: %w", id, errors.Join(proc.err, errDied))
		case <-ctx.Done():
			return fmt.Errorf("node %d does not serve: %w: %w", id, ctx.Err(), last)
		case <-tick.C:
		}
	}
}

var errDied = errors.New("see its log")

func missing(want []int, seen map[int32]string) []int {
	var out []int
	for _, id := range want {
		if _, ok := seen[int32(id)]; !ok {
			out = append(out, id)
		}
	}
	return out
}

func (c *Cluster) node(id int) (*node, error) {
	n, ok := c.nodes[id]
	if !ok {
		return nil, fmt.Errorf("testkafka: cluster %s has no node %d", c.opts.Name, id)
	}
	return n, nil
}

func (c *Cluster) proc(id int) *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.nodes[id]; n != nil && n.proc != nil {
		return n.proc
	}
	return nil
}

func (c *Cluster) running(id int) (*Process, error) {
	p := c.proc(id)
	if p == nil || !p.Alive() {
		return nil, fmt.Errorf("testkafka: node %d of %s doesn't run", id, c.opts.Name)
	}
	return p, nil
}

func (c *Cluster) brokerIDs() []int {
	ids := make([]int, c.opts.Brokers)
	for i := range ids {
		ids[i] = i + 1
	}
	return ids
}

// Brokers is the number of brokers.
func (c *Cluster) Brokers() int { return c.opts.Brokers }

// Bootstrap lists all brokers' addresses, separated by commas.
func (c *Cluster) Bootstrap() string { return strings.Join(c.Seeds(), ",") }

// Seeds are all brokers' addresses.
func (c *Cluster) Seeds() []string {
	var out []string
	for _, id := range c.brokerIDs() {
		out = append(out, c.Addr(id))
	}
	return out
}

// Addr is broker id's address. It stays the same over restarts.
func (c *Cluster) Addr(id int) string { return c.ports.Addr(id % ControllerID) }

// Alive says whether node id's process runs (a paused one does).
func (c *Cluster) Alive(id int) bool { _, err := c.running(id); return err == nil }

// Done is closed when node id's process, as it runs now, has ended.
func (c *Cluster) Done(id int) <-chan struct{} {
	if p := c.proc(id); p != nil {
		return p.Done()
	}
	ended := make(chan struct{})
	close(ended)
	return ended
}

// Kill sends SIGKILL to node id and waits for its end.
func (c *Cluster) Kill(id int) error {
	p, err := c.running(id)
	if err != nil {
		return err
	}
	return p.Kill()
}

// Stop ends node id by SIGTERM (a controlled shutdown) and waits for its end.
func (c *Cluster) Stop(id int) error {
	p, err := c.running(id)
	if err != nil {
		return err
	}
	return p.Stop(40 * time.Second)
}

// Pause stops node id's process as it is (SIGSTOP).
func (c *Cluster) Pause(id int) error { return c.sig(id, syscall.SIGSTOP) }

// Continue lets a paused node go on.
func (c *Cluster) Continue(id int) error { return c.sig(id, syscall.SIGCONT) }

func (c *Cluster) sig(id int, s syscall.Signal) error {
	p, err := c.running(id)
	if err != nil {
		return err
	}
	return p.Signal(s)
}

// StartBroker starts a node that was killed or stopped, on its old data, and waits until it serves (a killed
// broker can register again only when its old session is over, 2 s).
func (c *Cluster) StartBroker(ctx context.Context, id int) error {
	if c.Alive(id) {
		return fmt.Errorf("testkafka: node %d of %s already runs", id, c.opts.Name)
	}
	if err := c.launch(id); err != nil {
		return err
	}
	if err := c.waitServing(ctx, id, []int{id}); err != nil {
		return fmt.Errorf("testkafka: start broker: %w\n%s", err, c.LogTail(20))
	}
	return nil
}

// Heal starts every node that isn't running and lets paused ones go on.
func (c *Cluster) Heal(ctx context.Context) error {
	for _, id := range c.nodeIDs() {
		if c.Alive(id) {
			if err := c.Continue(id); err != nil {
				return err
			}
			continue
		}
		if err := c.StartBroker(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// nodeIDs are all nodes, the controller first.
func (c *Cluster) nodeIDs() []int {
	ids := slices.Sorted(maps.Keys(c.nodes))
	slices.SortStableFunc(ids, func(a, b int) int { return b/ControllerID - a/ControllerID })
	return ids
}

// Logs is a node's whole output.
func (c *Cluster) Logs(id int) string {
	n, err := c.node(id)
	if err != nil {
		return err.Error()
	}
	b, err := os.ReadFile(filepath.Join(n.dir, "out.log"))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// LogTail is the last lines of every node's output, without the depths of stack traces.
func (c *Cluster) LogTail(lines int) string {
	var b strings.Builder
	for _, id := range c.nodeIDs() {
		fmt.Fprintf(&b, "--- %s node %d, last log lines:\n%s\n", c.opts.Name, id, tail(withoutFrames(c.Logs(id)), lines))
	}
	return b.String()
}

// withoutFrames leaves the first two frames of each stack trace: the rest hides what the lines before it say.
func withoutFrames(log string) string {
	var b strings.Builder
	frames := 0
	for line := range strings.Lines(log) {
		if strings.HasPrefix(line, "\tat ") || strings.HasPrefix(line, "\t... ") {
			if frames++; frames > 2 {
				continue
			}
		} else {
			frames = 0
		}
		b.WriteString(line)
	}
	return b.String()
}

// nodeDir is a node's folder among those of its cluster.
func nodeDir(cluster string, id int) string {
	return filepath.Join(cluster, "node-"+strconv.Itoa(id))
}

// LogDir is the folder with a broker's partitions.
func (c *Cluster) LogDir(id int) string {
	root := c.dir
	if c.opts.LogRoot != "" {
		root = filepath.Join(c.opts.LogRoot, c.opts.Name)
	}
	return filepath.Join(nodeDir(root, id), "logs")
}

// PropsFile is the file with a node's settings; it is read when the node starts.
func (c *Cluster) PropsFile(id int) string {
	return filepath.Join(nodeDir(c.dir, id), "server.properties")
}

// Close kills every node, waits for their end and gives the ports back. The files stay for who made the folder.
func (c *Cluster) Close() {
	for _, id := range c.nodeIDs() {
		if p := c.proc(id); p != nil {
			_ = p.Kill()
		}
	}
	c.ports.Release()
}

func writeProps(path string, p map[string]string) error {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&b, "%s=%s\n", k, p[k])
	}
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(b.String()), 0o644)
	}
	if err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	return nil
}

// randomID is a random 16-byte id as Kafka writes them.
func randomID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	// A leading '-' would be taken for an option by Kafka's tools.
	b[0] &= 0x7f
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// Pid is node id's process id; 0 when it doesn't run.
func (c *Cluster) Pid(id int) int {
	p, err := c.running(id)
	if err != nil {
		return 0
	}
	return p.Pid()
}
