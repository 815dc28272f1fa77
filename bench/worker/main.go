// Command worker holds the bench's own peers, each a process of its own so that
// its CPU time and memory can be told from the bench's: a plain copier, a
// relay, a producer of stored batches, and what only passes batches on. They run until they are told to end,
// or have no more to do.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	verbs := map[string]func(context.Context, []string) error{"copy": copyTopic, "relay": relay, "produce": produce, "pass": passBatches}
	if len(os.Args) < 2 || verbs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: worker copy|relay|produce|pass [flags]; the bench starts it")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := verbs[os.Args[1]](ctx, os.Args[2:]); err != nil && ctx.Err() == nil {
		fmt.Fprintf(os.Stderr, "worker %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}
