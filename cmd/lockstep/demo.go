package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/lockstep-kafka/lockstep/internal/app"
	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/demo"
)

func demoCommand() *cobra.Command {
	var port int
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run the main job on two embedded clusters, and check it",
		Long: `Run the main job on two embedded Kafka clusters: live traffic on the source, a mirror, the proxy.
Ends on Ctrl-C, or after DEMO_SECONDS seconds, with a comparison of what was read through the proxy with the source.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := demo.Options{
				Out: cmd.OutOrStdout(), Terminal: term.IsTerminal(int(os.Stdout.Fd())), Port: port,
				Serve: func(ctx context.Context, c *config.Config, ready chan<- struct{}) error {
					return app.Run(ctx, c, app.Options{LogTo: os.Stderr, Ready: ready})
				},
			}
			if s := os.Getenv("DEMO_SECONDS"); s != "" {
				n, err := strconv.Atoi(s)
				if err != nil || n < 1 {
					return fmt.Errorf("DEMO_SECONDS=%q: write a number of seconds, 1 or more", s)
				}
				o.Duration = time.Duration(n) * time.Second
			}
			return demo.Run(cmd.Context(), o)
		},
	}
	cmd.Flags().IntVar(&port, "port", 19092, "port of the proxy's bootstrap address; the ports around it are used too")
	return cmd
}
