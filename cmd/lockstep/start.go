package main

import (
	"fmt"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/control"
	"github.com/lockstep-kafka/lockstep/internal/plural"
)

func startCommand() *cobra.Command {
	v := &verb{}
	v.print = printCut
	cmd := v.command(control.Start, "Mirror STOPPED partitions from their source (again): failback",
		`Mirror STOPPED partitions from their source. Clients' writes here are refused from then on, what both sides share is kept,
the rest is cut (not deleted: lockstep diverged lists it), and mirroring goes on. Allowed only when every selected partition
is STOPPED. Waits until all are MIRRORING. Prints for each partition from which offset on it was cut, and how many offsets
those are.`)
	cmd.Flags().BoolVar(&v.req.DiscardLocal, "discard-local", false, "drop local records when nothing says that the source shares any")
	return cmd
}

func printCut(cmd *cobra.Command, r *control.Result) error {
	rows := make([]table.Row, 0, len(r.Partitions))
	for _, o := range r.Partitions {
		row := table.Row{o.Mirror, o.Topic, o.Partition.Partition, o.State, o.Outcome, "-", "-", outcomeNotes(o)}
		if c := o.Cut; c != nil && o.Outcome == control.OutcomeDone {
			if row[6] = num(c.End - c.From); c.End > c.From {
				row[5] = num(c.From)
			}
		}
		rows = append(rows, row)
	}
	err := printTable(cmd.OutOrStdout(), table.Row{"mirror", "topic", "partition", "state", "start", "cut from", "offsets cut", "notes"}, rows, 8)
	if err != nil || !r.Done {
		return err
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), cutAway(r))
	return err
}

// cutAway is what a start that is done took out of what was shown here.
func cutAway(r *control.Result) string {
	var offsets int64
	var topics []string
	unknown := 0
	for _, o := range r.Partitions {
		switch c := o.Cut; {
		case c == nil:
			unknown++
		case c.End > c.From:
			offsets += c.End - c.From
			if !slices.Contains(topics, o.Topic) {
				topics = append(topics, o.Topic)
			}
		}
	}
	s := "Nothing that was shown here was cut."
	switch {
	case offsets > 0:
		was := "were"
		if offsets == 1 {
			was = "was"
		}
		s = fmt.Sprintf("%s that the source does not have %s cut. They are hidden, and there until retention removes them:\n", plural.Of(offsets, "offset"), was)
		for i, t := range topics {
			if i == 5 {
				s += fmt.Sprintf("  … and %s more\n", plural.Of(len(topics)-i, "topic"))
				break
			}
			s += "  lockstep diverged list --topic " + t + "\n"
		}
		s += "`lockstep diverged export` writes them out."
	case unknown == len(r.Partitions):
		return "What was cut, if anything, the ledger does not say (an older release made the cut): `lockstep diverged list` shows it."
	}
	if unknown > 0 {
		s += fmt.Sprintf(" Of %s the ledger does not say it (an older release made the cut): `lockstep diverged list` shows it.", plural.Of(unknown, "partition"))
	}
	return s
}
