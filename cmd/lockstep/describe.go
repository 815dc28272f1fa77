package main

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/control"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/internal/plural"
)

func describeCommand() *cobra.Command {
	var to target
	var sel selection
	var asJSON bool
	var groups groupFlags
	cmd := &cobra.Command{
		Use:   "describe",
		Short: "Describe mirrored partitions: offsets, lag, state, epochs, what they wait for",
		Long: `Describe mirrored partitions, and topics that are not mirrored, with the reason. Without --topic or --regex: all.

Source offsets, lag and the source's epoch are known to the instance that mirrors a partition; asked elsewhere they are -.
LME and LMO are the last mirrored leader epoch and offset of the pair with the source, from the newest stop. The column
epochs is source / destination / shown to clients.

With --groups: the offsets of consumer groups instead, of the partitions that the instance asked mirrors. State is synced,
or the reason why an offset isn't carried over (docs/operations.md, "Consumer groups"); lag is what the group has before it
on the destination; age is the time since it was in step last.

` + exitCodes,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := to.client(cmd)
			if err != nil {
				return err
			}
			q := url.Values{}
			if sel.Mirror != "" {
				q.Set("mirror", sel.Mirror)
			}
			if sel.Regex != "" {
				q.Set("regex", sel.Regex)
			}
			for _, t := range sel.Topics {
				q.Add("topic", t)
			}
			if groups.on {
				return describeGroups(cmd, c, q, groups, asJSON)
			}
			if len(groups.names) > 0 || groups.regex != "" {
				return &usageError{errors.New("--group and --group-regex go with --groups")}
			}
			var got struct {
				Partitions []control.Partition `json:"partitions"`
				Topics     []control.Topic     `json:"topics"` // not mirrored, and why
				LeftOut    int                 `json:"left_out,omitempty"`
			}
			if err := c.Get(cmd.Context(), "/v1/topics", q, &got); err != nil {
				return err
			}
			err = c.Get(cmd.Context(), "/v1/partitions", q, &got)
			var ce *control.Error
			if errors.As(err, &ce) && ce.Kind == control.NotFound && len(got.Topics) > 0 {
				got.Partitions, err = []control.Partition{}, nil // what there is to say of it stands in topics
			}
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), got)
			}
			switch {
			case len(got.Partitions) > 0:
				err = printPartitions(cmd, got.Partitions)
			case len(got.Topics) == 0:
				_, err = fmt.Fprintln(cmd.OutOrStdout(), "Nothing is mirrored.")
			}
			if err != nil {
				return err
			}
			return printTopics(cmd, got.Topics, got.LeftOut)
		},
	}
	to.flags(cmd)
	sel.flags(cmd, false)
	groups.flags(cmd)
	jsonFlag(cmd, &asJSON)
	return cmd
}

// printTopics prints the topics that are not mirrored, nothing if there is none.
func printTopics(cmd *cobra.Command, ts []control.Topic, left int) error {
	if len(ts) == 0 {
		return nil
	}
	rows := make([]table.Row, 0, len(ts))
	for _, t := range ts {
		rows = append(rows, table.Row{t.Mirror, t.Topic, t.State, t.Reason, t.Text})
	}
	if err := printTable(cmd.OutOrStdout(), table.Row{"mirror", "topic not mirrored", "state", "reason", "why"}, rows, 5); err != nil {
		return err
	}
	if left > 0 {
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%d more are not listed.\n", left)
		return err
	}
	return nil
}

func printPartitions(cmd *cobra.Command, ps []control.Partition) error {
	rows := make([]table.Row, 0, len(ps))
	for _, p := range ps {
		rows = append(rows, table.Row{
			p.Mirror, p.Topic, p.Partition, num(p.SourceOffset), num(p.DestinationOffset), num(p.Lag), p.State,
			num(p.LME), num(p.LMO), num(p.SourceEpoch) + " / " + num(p.DestinationEpoch) + " / " + num(p.ShownEpoch), num(p.Generation), notes(p),
		})
	}
	return printTable(cmd.OutOrStdout(), table.Row{
		"mirror", "topic", "partition", "source offset", "destination offset", "lag", "state", "LME", "LMO", "epochs", "generation", "notes",
	}, rows, 12)
}

// notes say what a partition is on the way to, what it waits for, and its
// error.
func notes(p control.Partition) string {
	var out []string
	if p.Unselected {
		out = append(out, "UNSELECTED: nobody mirrors it")
	}
	if p.Pending != "" {
		out = append(out, p.Pending+" not taken in yet")
	} else if p.Desired != "" && p.Desired != p.State {
		out = append(out, "on the way to "+string(p.Desired))
	}
	if len(p.WaitingFor) > 0 {
		out = append(out, "waits for instance "+strings.Join(p.WaitingFor, ", "))
	}
	if c := p.Cut; c != nil && c.End > c.From {
		out = append(out, fmt.Sprintf("its start cut %s from %d on (lockstep diverged)", plural.Of(c.End-c.From, "offset"), c.From))
	}
	if p.Lacks {
		out = append(out, "values of keys may be missing until it has been mirrored once more, which the next start does")
	}
	if p.Held != nil {
		out = append(out, heldNotes(p.Held))
	}
	if p.Retries > 0 {
		out = append(out, fmt.Sprintf("tried again %s", plural.Of(p.Retries, "time")))
	}
	if p.Error != "" {
		out = append(out, p.Error)
	}
	if p.Refused != "" {
		out = append(out, "start was refused: "+p.Refused)
	}
	return strings.Join(out, "; ")
}

// heldNotes say which transactions of the source hold a partition back.
func heldNotes(h *ledger.Held) string {
	var txns []string
	for i, t := range h.Transactions {
		if i == 3 {
			txns = append(txns, fmt.Sprintf("%d more", len(h.Transactions)-i))
			break
		}
		who := fmt.Sprintf("producer id %d epoch %d", t.ProducerID, t.ProducerEpoch)
		if t.TransactionalID != "" {
			who += fmt.Sprintf(" (transactional id %s, %s)", t.TransactionalID, t.State)
		}
		if t.Hanging {
			who += " (hanging: no coordinator will end it)"
		}
		since := t.Started
		if since.IsZero() {
			since = t.LastWrite
		}
		if !since.IsZero() {
			who += ", " + time.Since(since).Round(time.Second).String() + " old"
		}
		txns = append(txns, fmt.Sprintf("%s from offset %d", who, t.FirstOffset))
	}
	s := fmt.Sprintf("held back for %s at the source's offset %d by an open transaction, %s behind it", time.Since(h.Since).Round(time.Second), h.Offset, plural.Of(h.HighWatermark-h.Offset, "offset"))
	if len(txns) > 0 {
		s += ": " + strings.Join(txns, ", ")
	}
	if h.Error != "" {
		s += "; " + h.Error
	}
	return s
}
