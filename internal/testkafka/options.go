// Package testkafka runs real Apache Kafka brokers (on 127.0.0.1) for tests, the demo and the benchmarks.
//
// Jars come through Maven into a cache folder, once per machine and Kafka version. Start is for tests (it skips
// loudly where Java or Maven are missing, and fails there when CI=true), Up for programs. Every broker is a child
// of this process and dies with it, also when the process is killed.
package testkafka

import (
	"fmt"
	"time"
)

// DefaultVersion is the Kafka version that clusters run when Options.Version is empty.
const DefaultVersion = "4.3.1"

// ControllerID is the node id of the separate controller of clusters with more than one broker. With one broker
// that node (id 1) is the controller too.
const ControllerID = 1000

// Options describe a cluster. The zero value is one broker of DefaultVersion.
type Options struct {
	// Name appears in logs and folder names. Default "kafka".
	Name string
	// Brokers is the number of brokers, with ids 1…Brokers. Default 1.
	Brokers int
	// Version is the Kafka version: KRaft from 3.3 on, with ZooKeeper before (2.1.1 and 2.8.2 are tested). Default
	// DefaultVersion.
	Version string
	// Props are added to every node's server.properties, over the harness's own.
	Props map[string]string
	// Listeners are further listeners of broker 1, each with an advertised address of its own: for relays that clients
	// reach the broker through, and for TLS and SASL.
	Listeners []Listener
	// LogRoot is a folder for the nodes' logs (see LogRoot). Empty: with the cluster's other files.
	LogRoot string
	// Heap is the maximum heap of each JVM as Java writes it. Default "300m".
	Heap string
	// JVMArgs are added behind the harness's own JVM flags, so they win over them.
	JVMArgs []string
	// LogLevel of the brokers: "trace" … "error". Default "warn"; truncations are logged at "info".
	LogLevel string
	// StartTimeout is how long a node may take until it serves. Default 90 s (two cores under load).
	StartTimeout time.Duration
	// Logf is told what the harness does and waits for; nil: silence. Start sets it to t.Logf.
	Logf func(format string, args ...any)
}

// Listener is a listener besides the broker's own, which is plaintext.
type Listener struct {
	Name       string // upper case, other than PLAINTEXT and CONTROLLER
	Protocol   string // PLAINTEXT (also when empty), SSL, SASL_PLAINTEXT or SASL_SSL; its settings go into Props
	Listen     string // host:port
	Advertised string // host:port that clients who came this way are told
}

func (o Options) withDefaults() (Options, error) {
	if o.Name == "" {
		o.Name = "kafka"
	}
	if o.Brokers == 0 {
		o.Brokers = 1
	}
	if o.Brokers < 1 || o.Brokers > portBlock-1 {
		return o, fmt.Errorf("testkafka: %d brokers: between 1 and %d are possible", o.Brokers, portBlock-1)
	}
	if o.Version == "" {
		o.Version = DefaultVersion
	}
	if o.Heap == "" {
		o.Heap = "300m"
	}
	if o.LogLevel == "" {
		o.LogLevel = "warn"
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = 90 * time.Second
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	return o, nil
}

// commonProps is what tests want of every node: quick failure detection, quick ISR shrink, small internal topics,
// timestamps of any age accepted, a cleaner that looks often.
func commonProps() map[string]string {
	return map[string]string{
		"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "300",
		"controller.quorum.election.timeout.ms": "200", "controller.quorum.fetch.timeout.ms": "2000",
		"controller.quorum.election.backoff.max.ms": "100",
		"replica.lag.time.max.ms":                   "2000", "replica.fetch.wait.max.ms": "100", "replica.fetch.backoff.ms": "100",
		"controlled.shutdown.retry.backoff.ms": "200",
		"offsets.topic.num.partitions":         "4", "transaction.state.log.num.partitions": "4",
		"transaction.state.log.min.isr": "1", "share.coordinator.state.topic.min.isr": "1",
		"share.coordinator.state.topic.num.partitions": "4",
		"group.initial.rebalance.delay.ms":             "0",
		"num.network.threads":                          "2", "num.io.threads": "3", "background.threads": "2",
		"log.cleaner.dedupe.buffer.size": "4194304", "log.cleaner.backoff.ms": "200",
		"num.recovery.threads.per.data.dir": "1",
		"auto.leader.rebalance.enable":      "false", "auto.create.topics.enable": "false",
		"log.message.timestamp.after.max.ms": "9223372036854775807",
	}
}
