package main

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/control"
)

func describeCommand() *cobra.Command {
	var to target
	var sel selection
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "describe",
		Short: "Describe mirrored partitions: offsets, lag, state, epochs, what they wait for",
		Long: `Describe mirrored partitions. Without --topic or --regex: all.

Source offsets, lag and the source's epoch are known to the instance that mirrors a partition; asked elsewhere they are -.
LME and LMO are the last mirrored leader epoch and offset of the pair with the source, from the newest stop. The column
epochs is source / destination / shown to clients.

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
			var got struct {
				Partitions []control.Partition `json:"partitions"`
			}
			if err := c.Get(cmd.Context(), "/v1/partitions", q, &got); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), got)
			}
			return printPartitions(cmd, got.Partitions)
		},
	}
	to.flags(cmd)
	sel.flags(cmd, false)
	jsonFlag(cmd, &asJSON)
	return cmd
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
	if p.Pending != "" {
		out = append(out, p.Pending+" not taken in yet")
	} else if p.Desired != "" && p.Desired != p.State {
		out = append(out, "on the way to "+string(p.Desired))
	}
	if len(p.WaitingFor) > 0 {
		out = append(out, "waits for instance "+strings.Join(p.WaitingFor, ", "))
	}
	if p.Retries > 0 {
		out = append(out, fmt.Sprintf("%d retries", p.Retries))
	}
	if p.Error != "" {
		out = append(out, p.Error)
	}
	return strings.Join(out, "; ")
}
