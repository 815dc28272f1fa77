package report

import (
	"fmt"
	"strings"
)

// Values that say of how much a sample's figures are made: of seconds, and of a
// process's CPU time. They are no figures themselves.
const (
	MeasuredSeconds = "measured_s"
	MeasuredCPU     = "measured_cpu_s"
)

// What is shorter is not compared: start and end of a measurement are some ten
// milliseconds sharp, and the kernel counts CPU time in ticks of a hundredth.
const (
	leastSeconds = 0.3
	leastCPU     = 0.05
)

// Short says why a sample is too short to mean something; "" when it isn't.
func (x Sample) Short() string {
	var why []string
	if s, ok := x.Values[MeasuredSeconds]; ok && s < leastSeconds {
		why = append(why, fmt.Sprintf("%.2f s", s))
	}
	if s, ok := x.Values[MeasuredCPU]; ok && s < leastCPU {
		why = append(why, fmt.Sprintf("%.2f CPU s", s))
	}
	return strings.Join(why, ", ")
}

// shortFor says whether a sample is too short for one of its figures.
func (x Sample) shortFor(metric string) bool {
	of, least := MeasuredSeconds, leastSeconds
	switch {
	case strings.HasSuffix(metric, "cpu_s_gb"):
		of, least = MeasuredCPU, leastCPU
	case !strings.HasSuffix(metric, "mb_s"):
		return false
	}
	s, ok := x.Values[of]
	return ok && s < least
}

// shortLine names the samples that are too short; "" when none is.
func (s *Scenario) shortLine() string {
	var list []string
	for _, x := range s.Samples {
		if why := x.Short(); why != "" {
			who := x.Peer
			if x.Case != "" {
				who += ", " + x.Case
			}
			list = append(list, fmt.Sprintf("%s in round %d (%s)", who, x.Round, why))
		}
	}
	if len(list) == 0 {
		return ""
	}
	return fmt.Sprintf("Too short to mean much (less than %.1f s, or five ticks of CPU time), and not compared: %s.", leastSeconds, strings.Join(list, "; "))
}
