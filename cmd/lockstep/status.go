package main

import (
	"fmt"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/control"
)

func statusCommand() *cobra.Command {
	var to target
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the running instances, the mirrors, and partitions that need attention",
		Long: `Show the registered instances, the mirrors, and the partitions that are FAILED, that wait for an instance, that a
transaction open on the source holds back, or that are not where they are wanted; and topics that can't be mirrored.

` + exitCodes,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := to.client(cmd)
			if err != nil {
				return err
			}
			var got struct {
				Instances  []control.Instance     `json:"instances"`
				Mirrors    []control.MirrorStatus `json:"mirrors"`
				Partitions []control.Partition    `json:"partitions"` // those that need attention
				Topics     []control.Topic        `json:"topics"`     // that failed as a whole
			}
			if err := c.Get(cmd.Context(), "/v1/topics", nil, &got); err != nil {
				return err
			}
			got.Topics = slices.DeleteFunc(got.Topics, func(t control.Topic) bool { return t.State == "EXCLUDED" })
			if err := c.Get(cmd.Context(), "/v1/instances", nil, &got); err != nil {
				return err
			}
			if err := c.Get(cmd.Context(), "/v1/mirrors", nil, &got); err != nil {
				return err
			}
			var all struct {
				Partitions []control.Partition `json:"partitions"`
			}
			if err := c.Get(cmd.Context(), "/v1/partitions", nil, &all); err != nil {
				return err
			}
			got.Partitions = []control.Partition{}
			for _, p := range all.Partitions {
				if p.Error != "" || p.Held != nil || p.Pending != "" || len(p.WaitingFor) > 0 || p.Desired != "" && p.Desired != p.State {
					got.Partitions = append(got.Partitions, p)
				}
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), got)
			}
			if err := printInstances(cmd, got.Instances); err != nil {
				return err
			}
			if err := printMirrors(cmd, got.Mirrors); err != nil {
				return err
			}
			if err := printTopics(cmd, got.Topics, 0); err != nil {
				return err
			}
			if len(got.Partitions) == 0 {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), allWell(len(got.Topics), len(all.Partitions)))
				return err
			}
			return printPartitions(cmd, got.Partitions)
		},
	}
	to.flags(cmd)
	jsonFlag(cmd, &asJSON)
	return cmd
}

// allWell is the last line when no partition needs attention. Topics that are not
// mirrored, as their mirror wants it, are not passed over by it.
func allWell(topics, partitions int) string {
	switch {
	case topics > 0:
		return "The topics above are not mirrored; no partition of the others needs attention."
	case partitions == 1:
		return "The partition is where it is wanted."
	case partitions == 0:
		return "No partition is mirrored: `lockstep describe` shows the topics that are left out, and `lockstep check` what topics.include matches."
	}
	return fmt.Sprintf("All %d partitions are where they are wanted.", partitions)
}

func printInstances(cmd *cobra.Command, is []control.Instance) error {
	rows := make([]table.Row, 0, len(is))
	for _, i := range is {
		state := "live"
		if !i.Live {
			state = "away"
		}
		name := i.ID
		if i.Self {
			name += " (answers this)"
		}
		rows = append(rows, table.Row{name, state, utc(i.Lease), i.Version, i.Address})
	}
	return printTable(cmd.OutOrStdout(), table.Row{"instance", "state", "lease until", "version", "admin address"}, rows, 4)
}
