package testkafka

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed pom-zookeeper.xml
var pomZooKeeper []byte

// withZooKeeper says whether clusters of a version run with ZooKeeper here: those from before KRaft could be relied on.
func withZooKeeper(version string) bool {
	major, minor := versionOf(version)
	return major < 3 || major == 3 && minor < 3
}

func versionOf(version string) (major, minor int) {
	p := strings.SplitN(version, ".", 3)
	major, _ = strconv.Atoi(p[0])
	if len(p) > 1 {
		minor, _ = strconv.Atoi(p[1])
	}
	return major, minor
}

// jarSource is the Maven file for a version and its properties.
func jarSource(version string) (file []byte, props []string) {
	if !withZooKeeper(version) {
		return pom, []string{"-Dkv=" + version}
	}
	scala, zk := "2.13", "3.5.10"
	major, minor := versionOf(version)
	switch {
	case major == 2 && minor < 4:
		scala = "2.12"
	case major == 3:
		zk = "3.6.4"
	}
	return pomZooKeeper, []string{"-Dkv=" + version, "-Dsv=" + scala, "-Dzv=" + zk}
}

// zooKeeperProps are what a broker needs there instead of a controller quorum.
func (c *Cluster) zooKeeperProps(id int, logs string) map[string]string {
	p := commonProps()
	maps.DeleteFunc(p, func(k, _ string) bool {
		return strings.HasPrefix(k, "controller.") || strings.HasPrefix(k, "broker.") || strings.HasPrefix(k, "share.") ||
			k == "log.message.timestamp.after.max.ms"
	})
	rf := strconv.Itoa(min(3, c.opts.Brokers))
	maps.Copy(p, map[string]string{
		"broker.id": strconv.Itoa(id), "log.dirs": logs,
		"zookeeper.connect": c.ports.Addr(0), "zookeeper.session.timeout.ms": "2000", "zookeeper.connection.timeout.ms": "30000",
		"default.replication.factor": rf, "offsets.topic.replication.factor": rf, "transaction.state.log.replication.factor": rf,
		// Well above the session's time: so it is the controller that shrinks an ISR, which is one leader epoch, always.
		"replica.lag.time.max.ms": "10000",
	})
	return p
}

// prepareZooKeeper writes the settings of the node that stands in the controller's place.
func (c *Cluster) prepareZooKeeper() error {
	n := &node{id: ControllerID, dir: nodeDir(c.dir, ControllerID), main: "org.apache.zookeeper.server.quorum.QuorumPeerMain", addr: c.ports.Addr(0), jvm: c.jvm}
	logs := c.LogDir(ControllerID)
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	c.nodes[ControllerID] = n
	return writeProps(c.PropsFile(ControllerID), map[string]string{
		"dataDir": logs, "clientPort": strconv.Itoa(c.ports.First), "clientPortAddress": "127.0.0.1", "tickTime": "500",
		"maxClientCnxns": "0", "admin.enableServer": "false",
	})
}

// beginZooKeeper starts ZooKeeper, then broker 1 (so that it is the controller), then the others.
func (c *Cluster) beginZooKeeper(ctx context.Context) error {
	if err := c.prepareZooKeeper(); err != nil {
		return err
	}
	for _, id := range c.brokerIDs() {
		n := &node{id: id, dir: nodeDir(c.dir, id), main: kafkaMain, addr: c.ports.Addr(id), jvm: c.jvm}
		logs := c.LogDir(id)
		if err := os.MkdirAll(logs, 0o755); err != nil {
			return fmt.Errorf("data folder: %w", err)
		}
		p := c.zooKeeperProps(id, logs)
		p["listeners"], p["advertised.listeners"] = "PLAINTEXT://"+n.addr, "PLAINTEXT://"+n.addr
		p["listener.security.protocol.map"], p["inter.broker.listener.name"] = "PLAINTEXT:PLAINTEXT", "PLAINTEXT"
		if id == 1 {
			for _, l := range c.opts.Listeners {
				p["listeners"] += "," + l.Name + "://" + l.Listen
				p["advertised.listeners"] += "," + l.Name + "://" + l.Advertised
				p["listener.security.protocol.map"] += "," + l.Name + ":PLAINTEXT"
			}
		}
		maps.Copy(p, c.opts.Props)
		if err := writeProps(c.PropsFile(id), p); err != nil {
			return err
		}
		c.nodes[id] = n
	}
	if err := c.launch(ControllerID); err != nil {
		return err
	}
	if err := c.waitPort(ctx, ControllerID); err != nil {
		return err
	}
	for _, id := range c.brokerIDs() {
		if err := c.launch(id); err != nil {
			return err
		}
		if id == 1 {
			if err := c.waitServing(ctx, 1, []int{1}); err != nil {
				return err
			}
		}
	}
	for _, id := range c.brokerIDs() {
		if err := c.waitServing(ctx, id, c.brokerIDs()); err != nil {
			return err
		}
	}
	return nil
}

// waitPort waits until a node listens.
func (c *Cluster) waitPort(ctx context.Context, id int) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.StartTimeout)
	defer cancel()
	proc := c.proc(id)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var d net.Dialer
		nc, err := d.DialContext(ctx, "tcp", c.nodes[id].addr)
		if err == nil {
			return nc.Close()
		}
		select {
		case <-proc.done:
			return fmt.Errorf("node %d died at its start: %w", id, errDied)
		case <-ctx.Done():
			return fmt.Errorf("node %d does not listen: %w", id, err)
		case <-tick.C:
		}
	}
}

// Upgrade ends a broker in order and starts it again, on its data, as another version that runs in the same mode.
// The cluster's Props have to hold inter.broker.protocol.version while brokers of two versions run.
func (c *Cluster) Upgrade(ctx context.Context, id int, version string) error {
	if withZooKeeper(version) != withZooKeeper(c.opts.Version) {
		return fmt.Errorf("testkafka: from %s to %s: that is no change in place", c.opts.Version, version)
	}
	n, err := c.node(id)
	if err != nil {
		return err
	}
	k, err := kitFor(ctx, version, c.opts.Logf)
	if err != nil {
		return err
	}
	if err := c.Stop(id); err != nil {
		return err
	}
	c.mu.Lock()
	n.jvm = slices.Clone(k.jvm(c.opts))
	c.mu.Unlock()
	return c.StartBroker(ctx, id)
}
