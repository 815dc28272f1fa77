package main

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/admin"
	"github.com/lockstep-kafka/lockstep/internal/control"
)

// groupFlags choose consumer groups.
type groupFlags struct {
	on    bool
	names []string
	regex string
}

func (g *groupFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&g.on, "groups", false, "describe the offsets of consumer groups instead")
	f.StringArrayVarP(&g.names, "group", "g", nil, "with --groups: a group; repeat it for several")
	f.StringVar(&g.regex, "group-regex", "", "with --groups: groups whose whole name matches this RE2 expression")
}

func describeGroups(cmd *cobra.Command, c *admin.Client, q url.Values, g groupFlags, asJSON bool) error {
	for _, n := range g.names {
		q.Add("group", n)
	}
	if g.regex != "" {
		q.Set("group_regex", g.regex)
	}
	var got struct {
		Groups []control.Group `json:"groups"`
	}
	if err := c.Get(cmd.Context(), "/v1/groups", q, &got); err != nil {
		return err
	}
	if asJSON {
		return printJSON(cmd.OutOrStdout(), got)
	}
	away, err := sourcesAway(cmd, c, q.Get("mirror"))
	switch {
	case err != nil:
		return err
	case len(got.Groups) == 0 && away != "":
		_, err := fmt.Fprint(cmd.OutOrStdout(), away)
		return err
	case len(got.Groups) == 0:
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "No offsets of groups are known here: none are committed on the source for the partitions that this instance mirrors, or the\nsource has not answered since it mirrors them (the log says so). What is committed on the destination stays.")
		return err
	}
	rows := make([]table.Row, 0, len(got.Groups))
	for i := range got.Groups {
		r := &got.Groups[i]
		rows = append(rows, table.Row{
			r.Mirror, r.Group, r.Topic, num(r.Partition), num(r.SourceOffset), num(r.DestinationOffset), num(r.Epoch), num(r.Lag), r.State, age(r.AgeSeconds), r.Error,
		})
	}
	err = printTable(cmd.OutOrStdout(), table.Row{
		"mirror", "group", "topic", "partition", "source offset", "destination offset", "epoch", "lag", "state", "age", "notes",
	}, rows, 11)
	if err == nil {
		_, err = fmt.Fprint(cmd.OutOrStdout(), away)
	}
	return err
}

// sourcesAway says what is missing in a list of groups while sources don't
// answer: an instance that began to mirror meanwhile knows none.
func sourcesAway(cmd *cobra.Command, c *admin.Client, mirror string) (string, error) {
	var got struct {
		Mirrors []control.MirrorStatus `json:"mirrors"`
	}
	if err := c.Get(cmd.Context(), "/v1/mirrors", nil, &got); err != nil {
		return "", err
	}
	var b strings.Builder
	for i := range got.Mirrors {
		if m := &got.Mirrors[i]; m.SourceAway != nil && (mirror == "" || mirror == m.Name) {
			fmt.Fprintf(&b, "The source of mirror %s is away since %s. Groups that it was not asked for since this instance mirrors their partitions\nare not listed. What was synced before is committed on the destination, and consumers there find it:\n  kafka-consumer-groups.sh --bootstrap-server LOCKSTEP --describe --all-groups\n", m.Name, utc(*m.SourceAway))
		}
	}
	return b.String(), nil
}

// age is a time in seconds, - for never.
func age(s float64) string {
	if s < 0 {
		return "-"
	}
	return fmt.Sprint(time.Duration(s * float64(time.Second)).Round(time.Second))
}
