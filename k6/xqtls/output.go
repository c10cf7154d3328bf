package xqtls

import (
	"errors"
	"fmt"
	"io"
	"time"

	"go.k6.io/k6/v2/metrics"
	"go.k6.io/k6/v2/output"
)

// OutputName is what k6's --out takes. The output prints the shard when the run has ended: an output, and not a script's
// handleSummary, because k6 tells an output of each dropped iteration, with its time.
const OutputName = "qtls"

// current is the measurement of this process. It is set before k6 runs.
var current struct {
	recorder *recorder
	// err is why there is no result, until there is one.
	err error
}

// Measured is nil when the result of the measurement has been printed.
func Measured() error { return current.err }

type resultOutput struct {
	out      io.Writer
	recorder *recorder
}

func newOutput(p output.Params) (output.Output, error) {
	if current.recorder == nil {
		return nil, errors.New("the output qtls is for `qtls-k6 measure`: leave it out")
	}
	return &resultOutput{p.StdOut, current.recorder}, nil
}

func (*resultOutput) Description() string { return "a line for the operator" }
func (*resultOutput) Start() error        { return nil }

// AddMetricSamples looks for dropped iterations.
func (r *resultOutput) AddMetricSamples(containers []metrics.SampleContainer) {
	for _, c := range containers {
		for _, s := range c.GetSamples() {
			if s.Metric.Name == metrics.DroppedIterationsName {
				r.recorder.dropped(s.Time, int64(s.Value))
			}
		}
	}
}

func (r *resultOutput) Stop() error { return r.StopWithTestError(nil) }

// StopWithTestError prints the line, unless the run failed.
func (r *resultOutput) StopWithTestError(failed error) error {
	current.err = r.print(failed)
	return current.err
}

func (r *resultOutput) print(failed error) error {
	if failed != nil {
		return fmt.Errorf("the run failed: %w", failed)
	}
	line, err := r.recorder.line(time.Now())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(r.out, line)
	return err
}
