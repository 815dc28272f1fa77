package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/control"
)

func setCommand() *cobra.Command {
	var to target
	var req control.SettingsRequest
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Switch support for unclean leader elections of the source, for a mirror or some topics",
		Long: `Switch support for unclean leader elections of the source, for a mirror as a whole or for some of its topics. It takes effect
on all instances at once and lasts: it stands above the configuration until it is set to config again. A partition that is
FAILED for want of it goes on after lockstep recover.

` + exitCodes,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := to.client(cmd)
			if err != nil {
				return err
			}
			req.By = whoAmI()
			var got control.Settings
			if err := c.Post(cmd.Context(), "/v1/settings", req, &got); err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if asJSON {
				return printJSON(out, got)
			}
			if _, err := fmt.Fprintf(out, "mirror %s: unclean_leader_election %t\n", got.Mirror, got.UncleanLeaderElection); err != nil {
				return err
			}
			for _, t := range slices.Sorted(maps.Keys(got.Topics)) {
				if _, err := fmt.Fprintf(out, "topic %s: unclean_leader_election %t\n", t, got.Topics[t]); err != nil {
					return err
				}
			}
			return nil
		},
	}
	to.flags(cmd)
	f := cmd.Flags()
	f.StringVarP(&req.Mirror, "mirror", "m", "", "the mirror")
	f.StringArrayVarP(&req.Topics, "topic", "t", nil, "only this topic; repeat it for several")
	f.StringVar(&req.UncleanLeaderElection, "unclean-leader-election", "", "true, false, or config for what the configuration (a topic: the mirror) says")
	_ = cmd.MarkFlagRequired("mirror")
	_ = cmd.MarkFlagRequired("unclean-leader-election")
	jsonFlag(cmd, &asJSON)
	return cmd
}
