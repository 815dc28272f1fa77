// Package version says what build this is.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version is set by the build (Makefile); empty in plain go builds.
var Version string

// String is the module's version, or the commit it was built from.
func String() string {
	v := "devel"
	if Version != "" {
		return fmt.Sprintf("lockstep %s (%s, %s/%s)", Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	}
	if bi, ok := debug.ReadBuildInfo(); ok {
		if bi.Main.Version != "" && bi.Main.Version != "(devel)" {
			v = bi.Main.Version
		}
		for _, s := range bi.Settings {
			if s.Key == "vcs.revision" && v == "devel" {
				v += "-" + s.Value[:min(12, len(s.Value))]
			}
		}
	}
	return fmt.Sprintf("lockstep %s (%s, %s/%s)", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
