package benchmark

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/generator"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/bench/report"
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
	// Machines that made the load, and the images of the pods there.
	Machines []report.Machine `json:"machines,omitempty"`
	Images   []report.Image   `json:"images,omitempty"`
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
		all[name] = r.summary(name).planned()
	}
	return all
}

// summary is what is known of a record without reading it: it is in an annotation of its
// ConfigMap. A run may have thousands of records, which are too much to be read in each
// step.
type summary struct {
	Measurement string  `json:"measurement"`
	PerSecond   float64 `json:"perSecond,omitempty"`
	Reason      string  `json:"reason,omitempty"`
	Message     string  `json:"message,omitempty"`
}

func (r record) summary(measurement string) summary {
	return summary{Measurement: measurement, PerSecond: r.PerSecond, Reason: r.Reason, Message: r.Message}
}

func (s summary) planned() plan.Record {
	return plan.Record{PerSecond: s.PerSecond, Reason: s.Reason, Message: s.Message}
}

// tell a record's summary in its ConfigMap.
func (r record) tell(c *corev1.ConfigMap, measurement string) error {
	known, err := json.Marshal(r.summary(measurement))
	if err != nil {
		return err
	}
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, v1alpha1.AnnotationRecord, string(known))
	return nil
}

const componentLabel, componentRecords = "app.kubernetes.io/component", "records"

// How many ConfigMaps are read at a time: of a record, which may have a megabyte, and of
// what is known of one.
const recordsAtATime, summariesAtATime = 20, 500

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

// records that there are, whole. They take much memory: ask for them where all are needed.
func (r *Reconciler) records(ctx context.Context, b *v1alpha1.QTLSBenchmark) (records, error) {
	all := records{}
	return all, eachPage(ctx, r.APIReader, b, recordsAtATime, func() *corev1.ConfigMapList { return &corev1.ConfigMapList{} }, func(page *corev1.ConfigMapList) error {
		for i := range page.Items {
			if c := &page.Items[i]; metav1.IsControlledBy(c, b) {
				all.read(c)
			}
		}
		return nil
	})
}

// read the records of a ConfigMap. What somebody has made of one that is none has no result:
// the others have, and a run ends.
func (rs records) read(c *corev1.ConfigMap) {
	for name, text := range c.Data {
		var one record
		if err := json.Unmarshal([]byte(text), &one); err != nil {
			one = record{Reason: v1alpha1.ReasonResultUnreadable, Message: fmt.Sprintf("ConfigMap %q, key %q, is not what the operator wrote: %v", c.Name, name, err)}
		}
		rs[name] = one
	}
}

// summaries of the records that there are. One without, as an operator of before wrote
// them, is read whole and given its own.
func (r *Reconciler) summaries(ctx context.Context, b *v1alpha1.QTLSBenchmark) (map[string]plan.Record, error) {
	all := map[string]plan.Record{}
	metadata := func() *metav1.PartialObjectMetadataList {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
		return list
	}
	return all, eachPage(ctx, r.APIReader, b, summariesAtATime, metadata, func(page *metav1.PartialObjectMetadataList) error {
		for i := range page.Items {
			item := &page.Items[i]
			if !metav1.IsControlledBy(item, b) {
				continue
			}
			var s summary
			if err := json.Unmarshal([]byte(item.Annotations[v1alpha1.AnnotationRecord]), &s); err == nil && s.Measurement != "" {
				all[s.Measurement] = s.planned()
				continue
			}
			c, whole := &corev1.ConfigMap{}, records{}
			if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(item), c); err != nil {
				return err
			}
			whole.read(c)
			maps.Copy(all, whole.summary())
			before := c.DeepCopy()
			for name, one := range whole { // there is one in each
				if err := one.tell(c, name); err != nil {
					return err
				}
			}
			if err := client.IgnoreNotFound(r.Patch(ctx, c, client.MergeFrom(before))); err != nil {
				return err
			}
		}
		return nil
	})
}

// eachPage of the ConfigMaps of a benchmark's records, of so many at most, each in a list
// of its own.
func eachPage[L client.ObjectList](ctx context.Context, reader client.Reader, b *v1alpha1.QTLSBenchmark, most int64, empty func() L, take func(L) error) error {
	for next := ""; ; {
		page := empty()
		err := reader.List(ctx, page, client.InNamespace(b.Namespace), client.Limit(most), client.Continue(next),
			client.MatchingLabels{v1alpha1.LabelBenchmark: v1alpha1.LabelValue(b.Name), componentLabel: componentRecords})
		if err == nil {
			err = take(page)
		}
		if err != nil {
			return fmt.Errorf("records of QTLSBenchmark %s: %w", b.Name, err)
		}
		if next = page.GetContinue(); next == "" {
			return nil
		}
	}
}

// record a measurement, once: where there is a record of it, that stays.
func (r *Reconciler) record(ctx context.Context, b *v1alpha1.QTLSBenchmark, m plan.Measurement, one record, text string) error {
	c := &corev1.ConfigMap{ObjectMeta: generator.Meta(b, recordName(b, m)), Data: map[string]string{m.Name(): text}}
	c.Labels[componentLabel] = componentRecords
	if err := one.tell(c, m.Name()); err != nil {
		return err
	}
	err := r.Create(ctx, c)
	if apierrors.IsAlreadyExists(err) {
		existing := &corev1.ConfigMap{}
		err = r.APIReader.Get(ctx, client.ObjectKeyFromObject(c), existing)
		if err == nil && (!metav1.IsControlledBy(existing, b) || existing.Data[m.Name()] == "") {
			return conditions.Waiting(lookForReferences, v1alpha1.ReasonNotApplied, "ConfigMap %q exists in namespace %q and is not this benchmark's record of %s; delete it, or rename the benchmark", c.Name, b.Namespace, m)
		}
	}
	if refused(err) { // it is waited for as long as the run may take
		return conditions.Waiting(lookForReferences, v1alpha1.ReasonNotApplied, "ConfigMap %q, the record of %s: %v; allow it in namespace %q", c.Name, m, err, b.Namespace)
	}
	if err != nil {
		return fmt.Errorf("ConfigMap %s: %w", c.Name, err)
	}
	return nil
}
