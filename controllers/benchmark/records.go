package benchmark

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/generator"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/bench/shard"
)

// record of one measurement, as it is kept: under the measurement's name, in a
// ConfigMap for each repetition and number of replicas. What is there stays.
type record struct {
	Attempt int32 `json:"attempt,omitempty"`
	// Reason and Message say why there is no result.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// PerSecond are the handshakes per second of Result, a shard.Result, which is
	// decoded only where it is needed: its histograms take much memory.
	PerSecond float64         `json:"perSecond,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	// Versions of the programs that made the load.
	Versions map[string]string `json:"versions,omitempty"`
	// Usage of the gateway's pods in the window; nil where it was not observed.
	Usage *usage `json:"usage,omitempty"`
}

func (r record) decode() (shard.Result, error) {
	var result shard.Result
	err := json.Unmarshal(r.Result, &result)
	return result, err
}

// records by the measurements' names.
type records map[string]record

// summary for what comes next.
func (rs records) summary() map[string]plan.Record {
	all := make(map[string]plan.Record, len(rs))
	for name, r := range rs {
		all[name] = plan.Record{PerSecond: r.PerSecond, Reason: r.Reason, Message: r.Message}
	}
	return all
}

const componentLabel, componentRecords = "app.kubernetes.io/component", "records"

func recordsName(b *v1alpha1.QTLSBenchmark, m plan.Measurement) string {
	return fmt.Sprintf("%s-r%02d-n%d", b.Name, m.Repetition, m.Replicas)
}

// records that there are.
func (r *Reconciler) records(ctx context.Context, b *v1alpha1.QTLSBenchmark) (records, error) {
	var list corev1.ConfigMapList
	err := r.APIReader.List(ctx, &list, client.InNamespace(b.Namespace),
		client.MatchingLabels{v1alpha1.LabelBenchmark: v1alpha1.LabelValue(b.Name), componentLabel: componentRecords})
	if err != nil {
		return nil, fmt.Errorf("records of QTLSBenchmark %s: %w", b.Name, err)
	}
	all := records{}
	for i := range list.Items {
		c := &list.Items[i]
		if !metav1.IsControlledBy(c, b) {
			continue
		}
		for name, text := range c.Data {
			var one record
			if err := json.Unmarshal([]byte(text), &one); err != nil {
				return nil, fmt.Errorf("ConfigMap %s, key %s, is not what the operator wrote: %w", c.Name, name, err)
			}
			all[name] = one
		}
	}
	return all, nil
}

// record a measurement, once: where there is a record of it, that stays.
func (r *Reconciler) record(ctx context.Context, b *v1alpha1.QTLSBenchmark, m plan.Measurement, one record) error {
	text, err := json.Marshal(one)
	if err != nil {
		return err
	}
	c := &corev1.ConfigMap{}
	err = r.APIReader.Get(ctx, client.ObjectKey{Namespace: b.Namespace, Name: recordsName(b, m)}, c)
	switch {
	case apierrors.IsNotFound(err):
		c = &corev1.ConfigMap{ObjectMeta: generator.Meta(b, recordsName(b, m)), Data: map[string]string{m.Name(): string(text)}}
		c.Labels[componentLabel] = componentRecords
		err = r.Create(ctx, c)
	case err != nil:
	case !metav1.IsControlledBy(c, b):
		return fmt.Errorf("ConfigMap %s exists and is not this benchmark's; delete it, or rename the benchmark", c.Name)
	case c.Data[m.Name()] != "":
		return nil
	default:
		if c.Data == nil {
			c.Data = map[string]string{}
		}
		c.Data[m.Name()] = string(text)
		err = r.Update(ctx, c) // refused when somebody else was faster
	}
	if err != nil {
		return fmt.Errorf("ConfigMap %s: %w", recordsName(b, m), err)
	}
	return nil
}
