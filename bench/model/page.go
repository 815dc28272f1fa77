package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// step is a change of the design, on top of those before it.
type step struct {
	what  string
	apply func(*Design)
}

func steps() []step {
	return []step{
		{"200 ledger partitions, for new installations", func(d *Design) { d.LedgerPartitions = 200 }},
		{"checkpoints in a topic that only their owner reads", func(d *Design) { d.CheckpointsToAll = false }},
		{"metadata of a topic polled by one instance, not by all", func(d *Design) { d.MetadataOfAll = false }},
		{"fetch sessions at the source (KIP-227)", func(d *Design) { d.FetchSessions = true }},
	}
}

// write makes docs/scaling.md and its charts.
func write(m *Measured, docs string) error {
	mod := NewModel(m, Assumptions())
	for _, c := range charts(mod, m.Points) {
		if err := c.draw(filepath.Join(docs, "scaling")); err != nil {
			return err
		}
	}
	b := &strings.Builder{}
	page(b, m, mod)
	if err := os.WriteFile(filepath.Join(docs, "scaling.md"), []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("page: %w", err)
	}
	return nil
}

func page(b *strings.Builder, m *Measured, mod *Model) {
	pr := func(format string, args ...any) { fmt.Fprintf(b, format, args...) }
	s, d, a := Target(), Today(), mod.a
	l := mod.Predict(s, d)
	uses := sorted(mod, s, d)
	pr(`# Past one machine: a model

Written by `+"`make model`"+` from `+"`bench/model/measured.json`"+`; `+"`go run ./bench/model -measure`"+` makes the points anew (10 minutes, no Java).
It is arithmetic on the mechanisms in the code (`+"`bench/model/model.go`"+`), with constants that were measured, held against runs of
a whole Lockstep between two fake clusters. Nobody has run this size.

The size: **%d instances, %s partitions in %s topics, %s**; %d source and %d destination brokers, replication
factor %.0f, source batches of %s, every partition moves between two checkpoints.

`, s.Instances, group(s.Partitions), group(s.Topics), rate(s.BytesPerS), s.Source, s.Dest, s.Replicas, size(s.BatchBytes))

	pr("## What comes first\n\nHow full each limit is at that size, and how many partitions it allows (bytes in proportion, %d instances):\n\n", s.Instances)
	pr("| limit | where | load | of | full | reached at partitions |\n| --- | --- | ---:| ---:| ---:| ---:|\n")
	for _, u := range uses {
		pr("| %s | %s | %s | %s | %.0f %% | %s |\n", u.What, u.Where, amount(u.Load, u.Unit), amount(u.Of, u.Unit), 100*u.Full(), reached(mod, u))
	}
	pr(`
1. **At most %.0f instances mirror.** Ownership is by ledger partition, and there are %.0f: further instances serve clients
   and own nothing, and between %.0f and %.0f the load is uneven as long as the number doesn't divide %.0f (with 30 instances the
   busiest has two ledger partitions). No amount of partitions changes that.
   In the way of more: the number is a constant of the program, as a compacted topic's partitions can't be changed once
   keys lie in them. A new installation could have another one; an existing ledger would have to be copied.
2. **A take-over is short.** Each partition that gets another owner writes a generation to the ledger; writes that wait go
   together, %.0f to a transaction as measured: %s partitions in a ledger partition take **%s** with %.0f ms for a transaction. The
   first start writes %d times as often: %s. A broker of the destination that restarts moves %s leaders, %s in each ledger
   partition, twice. (Their tails are read again meanwhile, 16 at a time on each broker: not in this figure.)
3. **Looks over the ledger are rare.** A change is followed by a look at what changed; everything is looked at every 3 s
   (`+"`Manager.notice`"+`), %.2f s at this size, %.2f cores.
4. **Everybody reads everything**: %s checkpoints a second are decoded by all %d instances, %.2f cores on each.
5. **Everybody polls all metadata** every 3 s: an answer has %s; the source sends %s of it, the destination %s.

`, d.LedgerPartitions, d.LedgerPartitions, d.LedgerPartitions/2, d.LedgerPartitions, d.LedgerPartitions,
		d.RecordsInTxn, group(int(float64(s.Partitions)/d.LedgerPartitions)), seconds(l.TakeOver), a.TxnS*1000, startTxns, seconds(l.Start),
		group(s.Partitions/s.Dest), group(int(float64(s.Partitions)/float64(s.Dest)/d.LedgerPartitions)),
		l.Look, l.LookCores, group(int(l.Checkpoints)), s.Instances, l.LedgerCores, size(mod.metadata(s)), rate(l.MetadataSource), rate(l.MetadataDest))
	pr("![Times](scaling/times.svg)\n\n![CPU of an owner](scaling/cpu.svg)\n\n")

	pr("## What the destination's Kafka carries for it\n\n| what | today | for the mirrored data itself |\n| --- | ---:| ---:|\n")
	pr("| written to the ledger, before replication | %s, %.0f transactions/s (%.0f requests/s) | %s |\n", rate(l.LedgerBytes), l.LedgerTxns, l.LedgerTxns*txnRequests, rate(s.BytesPerS))
	pr("| read from the ledger, by %d instances | %s | – |\n", s.Instances, rate(l.LedgerReads))
	pr("| metadata answers | %s | – |\n", rate(l.MetadataDest))
	pr("| network out of a broker that leads a ledger partition | %s | %s of it are replication |\n", rate(l.DestOut), rate(s.BytesPerS*(s.Replicas-1)/float64(s.Dest)))
	pr("| network in of a broker | %s | %s |\n", rate(l.DestIn), rate(s.BytesPerS*s.Replicas/float64(s.Dest)))
	pr("| size of the ledger | %s | – |\n", size(l.LedgerDisk))
	pr("| one checkpoint batch | %s | limit: %s (`max.message.bytes` of the ledger) |\n", size(l.CheckpointBatch), size(ledgerMaxMessage))
	pr("| partitions of the ledger and its cleaner | %.0f; %s a second to clean | – |\n\n", d.LedgerPartitions, size(l.LedgerBytes))
	pr(`A source broker answers %s fetches a second with %s partitions in them a second, %s without a record, and %s of
metadata; its brokers send %s each.
An instance that starts reads %s of ledger, %s of CPU on one core, before it serves mirror topics.
Client connections are passed on one to one: C clients of n brokers are C × n connections on both sides of the proxies, as many
on the brokers as without a proxy, shared by %d instances.

![Ledger](scaling/ledger.svg)

`, group(int(l.FetchRate)), group(int(l.FetchAsked)), rate(l.FetchAnswered), rate(l.MetadataSource/float64(s.Source)), rate(l.SourceOut),
		size(l.LedgerDisk), seconds(l.ReadInS), s.Instances)

	pr("## Throughput and latency\n\n| | |\n| --- | ---:|\n")
	pr("| owners | %.0f, %s partitions and %s each |\n", l.Owners, group(int(l.PerOwner)), rate(s.BytesPerS*l.PerOwner/float64(s.Partitions)))
	pr("| cores of an owner: batches / ledger / looks / metadata | %.1f / %.1f / %.1f / %.1f |\n", l.DataCores, l.LedgerCores, l.LookCores, l.MetadataCores)
	pr("| heap of an owner, without batches under way | %s: %.0f bytes for each partition of the ledger, %.0f more for each own one |\n", size(l.Heap), mod.p.ViewBytes, max(0, mod.owned-mod.p.ViewBytes))
	pr("| one partition | one batch under way: %s with batches of %s, %s with merged ones of 512 KiB |\n", rate(s.BatchBytes/a.ProduceS), size(s.BatchBytes), rate(512*1024/a.ProduceS))
	pr("| latency, nothing is behind | about %.0f ms: a fetch that is waiting, then one and a half produces |\n\n", l.Latency*1000)
	pr("Latency doesn't depend on the number of partitions as long as no connection is busy all the time: %s fetches a second from %.0f owners are one every %.1f ms on a connection.\n\n",
		group(int(l.FetchRate)), l.Owners, 1000*l.Owners/l.FetchRate)

	pr("## What would remove them, in this order\n\nEach on top of those before it; none is built.\n\n| change | cores of an owner | take-over | ledger read by all | metadata, source | fullest limit then |\n| --- | ---:| ---:| ---:| ---:| --- |\n")
	row := func(what string, d Design) {
		l, u := mod.Predict(s, d), sorted(mod, s, d)[0]
		pr("| %s | %.1f | %s | %s | %s | %s, %s: %.0f %% |\n", what, l.DataCores+l.LedgerCores+l.LookCores+l.MetadataCores, seconds(l.TakeOver), rate(l.LedgerReads), rate(l.MetadataSource), u.What, u.Where, 100*u.Full())
	}
	row("as it is", d)
	for _, st := range steps() {
		st.apply(&d)
		row(st.what, d)
	}
	late := Today()
	late.CheckpointEvery = 9
	ll := mod.Predict(s, late)
	pr(`
A slower checkpoint alone gives little: every 9 s, just below the 10 s that recovery after retention needs, the ledger
still gets %s and each instance needs %.2f cores for reading it.

`, rate(ll.LedgerBytes), ll.LedgerCores)
	check(pr, m, mod)
	assumed(pr, m, mod)
}

func check(pr func(string, ...any), m *Measured, mod *Model) {
	pr("## The model beside what was measured\n\nOne instance, %d brokers on each side, topics of %d partitions, a record of 1 KiB for each partition every %.0f s. Counts and bytes; a test\nfails when the two differ by more than the factor.\n\n![Check](scaling/check.svg)\n\n", fakeBrokers, perTopic, betweenWrites.Seconds())
	pr("| what | factor |")
	for _, pt := range m.Points {
		pr(" %s partitions: model / measured |", group(pt.Partitions))
	}
	pr("\n| --- | ---:|%s\n", strings.Repeat(" ---:|", len(m.Points)))
	if len(m.Points) == 0 {
		return
	}
	for i, c := range mod.Compare(m.Points[0]) {
		pr("| %s | %.1f |", c.What, c.Factor)
		for _, pt := range m.Points {
			c := mod.Compare(pt)[i]
			pr(" %s / %s |", group(int(c.Predicted+.5)), group(int(c.Measured)))
		}
		pr("\n")
	}
	pr("\nNot predicted, only measured (times are of a busy machine):\n\n| partitions | start, s | CPU of the start, s | ledger transactions of the start | CPU idle, cores | CPU busy, cores | most of it | heap, MB | goroutines | a second instance takes half, s | ledger transactions for that |\n| ---:| ---:| ---:| ---:| ---:| ---:| --- | ---:| ---:| ---:| ---:|\n")
	for _, pt := range m.Points {
		var names []string
		for n := range pt.BusyCPU {
			names = append(names, n)
		}
		slices.SortFunc(names, func(x, y string) int {
			if pt.BusyCPU[x] != pt.BusyCPU[y] {
				if pt.BusyCPU[x] > pt.BusyCPU[y] {
					return -1
				}
				return 1
			}
			return strings.Compare(x, y)
		})
		total := 0.0
		for _, v := range pt.BusyCPU {
			total += v
		}
		var most []string
		for _, n := range names[:min(4, len(names))] {
			most = append(most, fmt.Sprintf("%s %.0f %%", n, 100*pt.BusyCPU[n]/total))
		}
		pr("| %s | %.1f | %.2f | %s | %.3f | %.3f | %s | %.1f | %.0f | %.1f | %d |\n", group(pt.Partitions), pt.StartS, pt.Start.CPU, group(int(pt.Start.Dest["lockstep-ledger EndTxn"].Requests)), pt.Idle.CPU/pt.Idle.Seconds, pt.Busy.CPU/pt.Busy.Seconds,
			strings.Join(most, ", "), pt.HeapBytes/1e6, pt.Goroutines, pt.Join.Seconds, pt.Join.Txns)
	}
	pr("\nWrites that wait for a ledger partition go together, so how many transactions a start takes depends on how they come. Rows that depend on time (polls, checkpoints)\nsuffer from the busy machine: the model counts with the time the fake broker took.\n\n")
	growth(pr, m)
}

// growth names what grows faster than linear between the measured sizes.
func growth(pr func(string, ...any), m *Measured) {
	pr("Faster than linear, between the two largest sizes:\n\n")
	found := 0
	if n := len(m.Points); n > 1 {
		lo, hi := m.Points[n-2], m.Points[n-1]
		by := float64(hi.Partitions) / float64(lo.Partitions)
		for _, g := range []struct {
			what, why string
			lo, hi    float64
		}{
			{"CPU of the start", "partitions that are added go through all that run (`Engine.route`)", lo.Start.CPU, hi.Start.CPU},
			{"CPU idle", "each metadata answer goes through all that run", lo.Idle.CPU, hi.Idle.CPU},
			{"CPU while busy", "each metadata answer goes through all that run", lo.Busy.CPU, hi.Busy.CPU},
		} {
			if g.lo > 0 && g.hi/g.lo > 1.2*by {
				found++
				pr("- %s: %.1f times as much from %s to %s partitions (%.0f times as many): %s;\n", g.what, g.hi/g.lo, group(lo.Partitions), group(hi.Partitions), by, g.why)
			}
		}
	}
	if found == 0 {
		pr("- nothing.\n")
	}
	pr("\nThe machine was busy and its caches shared: take the exponents for signs, not for figures.\n\n")
}

func assumed(pr func(string, ...any), m *Measured, mod *Model) {
	p, a := m.Parts, mod.a
	pr("## Constants\n\n| measured | |\n| --- | ---:|\n")
	for _, r := range []struct {
		what string
		v    string
	}{
		{"a checkpoint in the ledger", fmt.Sprintf("%.0f bytes", p.CheckpointBytes)},
		{"a partition's record", fmt.Sprintf("%.0f bytes", p.RecordBytes)},
		{"an instance's record, every 3.3 s", fmt.Sprintf("%.0f bytes", p.InstanceBytes)},
		{"a partition in a metadata answer, 3 replicas", fmt.Sprintf("%.0f bytes", p.MetadataBytes)},
		{"a partition in a Fetch / without records in its answer", fmt.Sprintf("%.0f / %.0f bytes", p.FetchAskBytes, p.FetchAnswerBytes)},
		{"ledger writes of a partition at its first start", fmt.Sprintf("%d, in transactions of %d requests each", startTxns, txnRequests)},
		{"an entry of the ledger read, decoded and shown (fake broker's part included)", fmt.Sprintf("%.1f µs CPU", p.ViewApplyNs/1e3)},
		{"a checkpoint decoded alone", fmt.Sprintf("%.1f µs, %.0f allocations", p.CheckpointDecodeNs/1e3, p.CheckpointDecodeAlc)},
		{"heap of a View for each partition", fmt.Sprintf("%.0f bytes", p.ViewBytes)},
		{"heap of a mirrored partition, View included", fmt.Sprintf("%.0f bytes", mod.owned)},
		{"a partition in a metadata answer, taken in", fmt.Sprintf("%.2f µs CPU", mod.metadataNs/1e3)},
	} {
		pr("| %s | %s |\n", r.what, r.v)
	}
	pr("\nMeasured %s on %d × %s, %.0f GB, %s, Linux %s, commit %s, load average %.1f before it began: times are the least of several tries, and still those of\na busy machine; bytes, counts and allocations are exact.%s\n\n",
		m.Started.Format("2006-01-02 15:04 MST"), m.Machine.CPUs, m.Machine.Processor, float64(m.Machine.Memory)/1e9, m.Machine.Go, m.Machine.Kernel, m.Commit, m.Load, m.Note)
	pr("| assumed, not measured here | |\n| --- | ---:|\n")
	pr("| a ledger transaction on a real destination, four requests, acks=all | %.0f ms |\n| a produce, acks=all | %.0f ms |\n| least time between two fetches on a connection | %.0f ms |\n", a.TxnS*1e3, a.ProduceS*1e3, a.FetchCycleS*1e3)
	pr("| a broker's CPU for one partition in a fetch or a metadata answer | %.0f µs |\n| Lockstep's CPU for batches of 16 KiB ([benchmarks](benchmarks.md)) | %.1f s for a GB |\n", a.EntryS*1e6, a.DataS)
	pr("| an instance | %.0f cores, %s of memory for the heap, %s each way |\n| a broker | %.0f cores, %s each way |\n| a take-over may last | %.0f s |\n\n", a.Cores, size(a.InstanceHeap), rate(a.LinkBytes), a.BrokerCores, rate(a.LinkBytes), a.TakeOverS)
	pr(`Not modelled: clients that read and write through the proxies (their bytes go through the instances once more); consumer
groups (each instance with partitions of a group commits for it, each cycle asks for all groups); the sync of topics and
their configs every %s, by every instance; ACLs; TLS; compression and batches that are re-encoded; partitions that
differ in load, as keys are spread by hash; brokers' disks and page caches; networks between sites; failures during a take-over;
the time of a rebalance of the group itself.
`, "`metadata_refresh`")
}

func sorted(m *Model, s Size, d Design) []Use {
	u := m.Uses(s, d)
	slices.SortStableFunc(u, func(a, b Use) int {
		switch {
		case a.Full() > b.Full():
			return -1
		case a.Full() < b.Full():
			return 1
		}
		return 0
	})
	return u
}

// reached is the number of partitions at which a limit is full.
func reached(m *Model, u Use) string {
	full := func(f float64) bool {
		for _, x := range m.Uses(Target().Share(f), Today()) {
			if x.What == u.What && x.Where == u.Where {
				return x.Full() >= 1
			}
		}
		return false
	}
	if u.What == "Instances that mirror" {
		return "any"
	}
	lo, hi := 0.001, 50.0
	if !full(hi) {
		return "above 10,000,000"
	}
	for range 40 {
		if mid := (lo + hi) / 2; full(mid) {
			hi = mid
		} else {
			lo = mid
		}
	}
	n := int(hi * float64(Target().Partitions))
	return group((n + 500) / 1000 * 1000)
}

func amount(v float64, unit string) string {
	switch unit {
	case "bytes":
		return size(v)
	case "bytes/s":
		return rate(v)
	case "s":
		return seconds(v)
	case "instances":
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}

func seconds(v float64) string {
	if v >= 10 {
		return fmt.Sprintf("%.0f s", v)
	}
	return fmt.Sprintf("%.1f s", v)
}

func rate(v float64) string { return size(v) + "/s" }

func size(v float64) string {
	switch {
	case v >= 1e9:
		return fmt.Sprintf("%.1f GB", v/1e9)
	case v >= 1e6:
		return fmt.Sprintf("%.1f MB", v/1e6)
	}
	return fmt.Sprintf("%.1f KB", v/1e3)
}

func group(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
