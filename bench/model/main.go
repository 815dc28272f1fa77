// Command model says how Lockstep goes with size beyond one machine: it reads
// the measured points in bench/model/measured.json, derives from them and from
// the mechanisms of the code what a large installation costs, and writes
// docs/scaling.md with its charts. With -measure it makes the points anew.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	measured := flag.String("points", "bench/model/measured.json", "measured points")
	docs := flag.String("docs", "docs", "folder of the page")
	measure := flag.Bool("measure", false, "measure the points anew (minutes) before the page is written")
	sizes := flag.String("sizes", "10,100,1000,5000", "partitions to measure with")
	keep := flag.Bool("keep-parts", false, "with -measure: keep the constants of single parts, measure the whole only")
	child := flag.String("child", "", "internal: run Lockstep with this configuration")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *measured, *docs, *child, *sizes, *measure, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "model:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, points, docs, child, sizes string, measure, keep bool) error {
	if child != "" {
		return serve(ctx, child)
	}
	if measure {
		var list []int
		for s := range strings.SplitSeq(sizes, ",") {
			n, err := strconv.Atoi(s)
			if err != nil || n <= 0 {
				return fmt.Errorf("-sizes: %q is no number of partitions", s)
			}
			list = append(list, n)
		}
		var parts *Parts
		if keep {
			m, err := load(points)
			if err != nil {
				return err
			}
			parts = &m.Parts
		}
		m, err := measureAll(ctx, list, parts)
		if err != nil {
			return err
		}
		if err := m.save(points); err != nil {
			return err
		}
	}
	m, err := load(points)
	if err != nil {
		return err
	}
	return write(m, docs)
}
