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
	"qtls.dev/qtls/internal/conditions"
)

// record of one measurement, as it is kept: under the measurement's name, in a
// ConfigMap of its own, for that holds 1 MiB at most. What is there stays.
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

func recordName(b *v1alpha1.QTLSBenchmark, m plan.Measurement) string {
	return fmt.Sprintf("%s-%04d-record", b.Name, m.Number)
}

// text of a record. What is too much for a ConfigMap is no result, and that is recorded:
// asking again would not help.
func (r record) text() (string, error) {
	text, err := json.Marshal(r)
	if err != nil || len(text) <= corev1.MaxSecretSize {
		return string(text), err
	}
	text, err = json.Marshal(record{Attempt: r.Attempt, Reason: v1alpha1.ReasonResultUnreadable,
		Message: fmt.Sprintf("the record of it would have %d bytes, and a ConfigMap holds %d; have fewer spec.modes[].groups or signatureSchemes, or fewer replicas, in another benchmark", len(text), corev1.MaxSecretSize)})
	return string(text), err
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
func (r *Reconciler) record(ctx context.Context, b *v1alpha1.QTLSBenchmark, m plan.Measurement, text string) error {
	c := &corev1.ConfigMap{ObjectMeta: generator.Meta(b, recordName(b, m)), Data: map[string]string{m.Name(): text}}
	c.Labels[componentLabel] = componentRecords
	err := r.Create(ctx, c)
	if apierrors.IsAlreadyExists(err) {
		existing := &corev1.ConfigMap{}
		err = r.APIReader.Get(ctx, client.ObjectKeyFromObject(c), existing)
		if err == nil && (!metav1.IsControlledBy(existing, b) || existing.Data[m.Name()] == "") {
			return conditions.Waiting(lookForReferences, v1alpha1.ReasonNotApplied, "ConfigMap %q exists in namespace %q and is not this benchmark's record of %s; delete it, or rename the benchmark", c.Name, b.Namespace, m)
		}
	}
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) { // by a quota or a webhook; it is waited for as long as the run may take
		return conditions.Waiting(lookForReferences, v1alpha1.ReasonNotApplied, "ConfigMap %q, the record of %s: %v; allow it in namespace %q", c.Name, m, err, b.Namespace)
	}
	if err != nil {
		return fmt.Errorf("ConfigMap %s: %w", c.Name, err)
	}
	return nil
}
