package main

import (
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/control"
	"github.com/lockstep-kafka/lockstep/internal/plural"
)

func stopCommand() *cobra.Command {
	v := &verb{}
	v.print = printLeft
	return v.command(control.Stop, "Stop mirroring and let clients write here: failover",
		`Stop mirroring and let clients write here, with the offsets and epochs going on where the source's ended. Needs no source:
it works when the source is gone. Prints for each partition what was left behind: the first source offset that is not here,
epoch and timestamp of the last mirrored batch, and the source's last known end. That is as old as the last answer of the
source, of a PAUSED partition as old as the pause: what was left behind is at least what lies between the two.`)
}

func printLeft(cmd *cobra.Command, r *control.Result) error {
	rows := make([]table.Row, 0, len(r.Partitions))
	for _, o := range r.Partitions {
		row := table.Row{o.Mirror, o.Topic, o.Partition.Partition, o.State, "-", "-", "-", "-", "-", outcomeNotes(o)}
		if l := o.Left; l != nil && o.Outcome == control.OutcomeDone {
			row[4], row[5], row[7] = num(l.Offset), num(l.Epoch), num(l.SourceEnd)
			if l.Timestamp >= 0 {
				row[6] = timestamp(l.Timestamp)
			}
			if l.SourceEnd >= 0 && l.Offset >= 0 {
				row[8] = num(max(l.SourceEnd-l.Offset, 0))
			}
		}
		rows = append(rows, row)
	}
	err := printTable(cmd.OutOrStdout(), table.Row{
		"mirror", "topic", "partition", "state", "mirrored up to", "epoch", "timestamp", "source's last known end", "left behind, at least", "notes",
	}, rows, 10)
	if err != nil || !r.Done {
		return err
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), leftBehind(r))
	return err
}

// leftBehind is what a stop that is done means for an operator.
func leftBehind(r *control.Result) string {
	var left int64
	var unknown, lacking int
	for _, o := range r.Partitions {
		if o.Lacks {
			lacking++
		}
		if l := o.Left; l != nil && l.SourceEnd >= 0 && l.Offset >= 0 {
			left += max(l.SourceEnd-l.Offset, 0)
		} else {
			unknown++
		}
	}
	s := fmt.Sprintf("%d partitions are STOPPED: clients may write to them through Lockstep.\n", len(r.Partitions))
	if len(r.Partitions) == 1 {
		s = "1 partition is STOPPED: clients may write to it through Lockstep.\n"
	}
	nothing := "Nothing"
	if lacking > 0 {
		nothing = "No later record"
		s += fmt.Sprintf("Of %s values of keys may be missing: the cleaner may have taken them for records that are dead now. The next start brings back those that the source still has.\n", plural.Of(lacking, "compacted partition"))
	}
	switch {
	case left > 0:
		s += fmt.Sprintf("Not here: at least %s of the source", plural.Of(left, "offset"))
	case unknown < len(r.Partitions):
		s += nothing + " that the source was known to have is missing here"
	default:
		return s + "The source's ends are not known: what it had behind \"mirrored up to\" is not here."
	}
	if unknown > 0 {
		s += fmt.Sprintf("; of %s the source's end is not known, and what it had behind \"mirrored up to\" is not here", plural.Of(unknown, "partition"))
	}
	return s + "."
}

// utc is how all commands show a time.
func utc(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// timestamp shows a record's timestamp, milliseconds since 1970; what no
// calendar has stays a number.
func timestamp(ms int64) string {
	const year9999 = 253402300799999
	if ms < 0 || ms > year9999 {
		return num(ms)
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z")
}
