package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/control"
	"github.com/lockstep-kafka/lockstep/internal/plural"
)

func forgetCommand() *cobra.Command {
	var to target
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "forget INSTANCE",
		Short: "Remove an instance that is gone for good, so that nothing waits for it",
		Long: `Remove the registration of an instance that will not come back. With support for unclean leader elections, start and the
recovery from one wait for every registered instance. It is refused while the instance's lease lives, and for 30 s after.
An instance that comes back all the same registers again, and reads the ledger before it serves.

` + exitCodes,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := to.client(cmd)
			if err != nil {
				return err
			}
			var got control.Instance
			if err := c.Post(cmd.Context(), "/v1/instances/forget", control.ForgetRequest{Instance: args[0]}, &got); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), got)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "instance %s is forgotten; %s waited for it\n", got.ID, plural.Of(got.AwaitedCount, "partition"))
			return err
		},
	}
	to.flags(cmd)
	jsonFlag(cmd, &asJSON)
	return cmd
}
