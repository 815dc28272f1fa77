// Command docgen writes the generated pages of docs/ (make docs).
package main

import (
	"fmt"
	"os"

	"github.com/lockstep-kafka/lockstep/internal/config"
)

func main() {
	for name, text := range map[string]string{"docs/config.md": config.Reference(), "docs/apis.md": apis()} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "docgen:", err)
			os.Exit(1)
		}
	}
}
