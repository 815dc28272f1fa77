package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/bench/measure"
	"github.com/lockstep-kafka/lockstep/bench/scenario"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
)

// alone makes sure that this is the machine's only bench: two would measure one
// another. An abstract socket leaves no file, and its owner's death frees it.
func alone(ctx context.Context) (release func(), err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", "@lockstep-bench")
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, errors.New("another bench runs on this machine; two would measure one another: wait for its end")
	}
	if err != nil {
		return nil, fmt.Errorf("is another bench running? %w", err)
	}
	return func() { _ = l.Close() }, nil
}

// room makes a folder where the brokers' logs will find room.
func room(s settings) (dir, where string, remove func(), err error) {
	gib := map[scenario.Mode]float64{scenario.Quick: 6, scenario.Core: 12, scenario.Full: 30, scenario.Growth: 4, scenario.Proxy: 8}[s.mode]
	need := max(gib*s.scale, 1) * (1 << 30)
	dir, where, remove, err = testkafka.LogRoot("lockstep-bench-logs", uint64(need))
	if err != nil {
		return "", "", nil, err
	}
	if free := float64(testkafka.FreeIn(dir)); free < need {
		remove()
		return "", "", nil, fmt.Errorf("the brokers' logs need %.0f GB, and %s has %.1f GB left: let %s name another folder",
			need/1e9, where, free/1e9, testkafka.LogRootEnv)
	}
	return dir, where, remove, nil
}

// inUse says how much of the CPUs, in percent, others use now, stolen time
// included. With a high load average it looks for longer: was that what has
// ended, or what comes and goes?
func inUse(ctx context.Context, highLoad bool) (*float64, error) {
	look := 2 * time.Second
	if highLoad {
		look = 10 * time.Second
	}
	before, err := measure.CPUs()
	if err != nil {
		return nil, err
	}
	if err := lab.Sleep(ctx, look); err != nil {
		return nil, err
	}
	after, err := measure.CPUs()
	if err != nil {
		return nil, err
	}
	used, stolen := measure.Share(before, after)
	used += stolen
	return &used, nil
}
