// Package foreign runs the Kafka clients that people use, of every language, as black boxes through the proxy: one
// program for each language (a driver) goes through the same cases with one of its clients and prints what the client
// saw, one JSON object a line. What is right is decided here, not in the drivers.
package foreign

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// Case is what a client is put through.
type Case string

// The cases, in the order in which drivers run them. "Both" topics are an ordinary one of the destination and mirrored
// ones.
const (
	// Produce writes batches with each of the client's codecs to an ordinary topic.
	Produce Case = "produce"
	// Group reads half of both topics in a classic consumer group, commits, leaves, and reads on with another member.
	Group Case = "group"
	// Admin creates, describes and deletes a topic, lists groups and asks for a mirrored topic's offsets.
	Admin Case = "admin"
	// Txn commits, aborts, commits with a group's offsets, and reads the topic back read_committed.
	Txn Case = "txn"
	// KIP848 is Group with the new group protocol.
	KIP848 Case = "kip848"
	// Share reads the ordinary topic in a share group, and is refused the mirrored one.
	Share Case = "share"
	// Streams counts words of a mirrored topic with exactly_once_v2, is closed and started again.
	Streams Case = "streams"
	// Tools are the stock command-line tools.
	Tools Case = "tools"
	// Reauth keeps one connection for longer than SASL sessions last; of Node alone, and not among Cases.
	Reauth Case = "reauth"
)

// Cases are all of them in their order.
func Cases() []Case { return []Case{Produce, Group, Admin, Txn, KIP848, Share, Streams, Tools} }

// Client is a client library in one version.
type Client struct {
	// Name is a word for topics and groups.
	Name string
	// Library is its name and version for people.
	Library string
	// Driver is the program that runs it.
	Driver Driver
	// Cases are what the client can do; Lacks says for the others why not.
	Cases []Case
	Lacks map[Case]string
	// Codecs are those that it can write and read.
	Codecs []oracle.Codec
	// Long clients run in the long tests only.
	Long bool
}

// Has says whether the client goes through a case.
func (c Client) Has(k Case) bool {
	for _, x := range c.Cases {
		if x == k {
			return true
		}
	}
	return false
}

// Job is what a driver is told.
type Job struct {
	Bootstrap string
	// Prefix begins the names of all topics and groups: topic PREFIX-CLIENT (two partitions) and PREFIX-CLIENT-txn
	// (one) have to exist; groups are PREFIX-CLIENT-CASE-TOPIC.
	Prefix string
	// Mirrored are the mirrored topics and how many records each holds; the first is used where one will do.
	Mirrored []Topic
	// Client and Cases are what to run.
	Client string
	Cases  []Case
	// SASL is user:password for SASL PLAIN; "": none. Only the driver Node knows it.
	SASL string
}

// Topic is a mirrored topic of one partition.
type Topic struct {
	Name  string
	Count int
}

// Line is one line of a driver's output. Every case of every client ends with a line that has Done or Error; the
// others are what it saw.
type Line struct {
	Client string `json:"client"`
	Case   Case   `json:"case"`
	Done   bool   `json:"done"`
	Error  string `json:"error"`
	Millis int64  `json:"ms"`

	// A record written (Codec is set) or read.
	Topic     string `json:"topic"`
	Session   int    `json:"session"`
	Partition int32  `json:"p"`
	Offset    int64  `json:"o"`
	Key       []byte `json:"k"`
	Value     []byte `json:"v"`
	Codec     string `json:"codec"`

	// What Admin saw: see the drivers' admin.
	Admin *AdminView `json:"admin"`
	// Text is a tool's output, Refused the error that was expected.
	Text    string `json:"text"`
	Refused string `json:"refused"`
	// Counts are the words that Streams counted.
	Counts map[string]int64 `json:"counts"`
}

// AdminView is what a client's admin calls answered.
type AdminView struct {
	// Partitions of the created topic, and the addresses of all brokers.
	Partitions int      `json:"partitions"`
	Addresses  []string `json:"addresses"`
	Groups     []string `json:"groups"`
	// Start and End of the mirrored topic; −1: the client has no call for it.
	Start int64 `json:"start"`
	End   int64 `json:"end"`
}

// Run runs a driver with one client to its end.
func Run(ctx context.Context, d Driver, j Job) ([]Line, error) {
	tmp, remove, err := testkafka.Scratch("lockstep-driver")
	if err != nil {
		return nil, err
	}
	defer remove()
	args, err := d.command(ctx, tmp)
	if err != nil {
		return nil, err
	}
	var topics, cases []string
	for _, t := range j.Mirrored {
		topics = append(topics, fmt.Sprintf("%s:%d", t.Name, t.Count))
	}
	for _, c := range j.Cases {
		cases = append(cases, string(c))
	}
	args = append(args, "bootstrap="+j.Bootstrap, "prefix="+j.Prefix, "mirrored="+strings.Join(topics, ","),
		"client="+j.Client, "cases="+strings.Join(cases, ","))
	if j.SASL != "" {
		args = append(args, "sasl="+j.SASL)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay, cmd.SysProcAttr = 5*time.Second, testkafka.ChildAttr()
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	runErr := cmd.Run()
	var lines []Line
	in := bufio.NewScanner(&stdout)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		if !bytes.HasPrefix(in.Bytes(), []byte("{")) {
			continue // a library that writes to standard output
		}
		var l Line
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			return lines, fmt.Errorf("foreign: %s printed %q: %w", d, in.Text(), err)
		}
		lines = append(lines, l)
	}
	if runErr != nil {
		return lines, fmt.Errorf("foreign: %s: %w: %s", d, runErr, lastLines(stderr.String(), 40))
	}
	return lines, in.Err()
}

func lastLines(s string, n int) string {
	l := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(l[max(0, len(l)-n):], "\n")
}
