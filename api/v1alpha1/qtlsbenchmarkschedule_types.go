package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// QTLSBenchmarkSchedule makes a QTLSBenchmark again and again, as a CronJob makes
// Jobs. It never has two at a time: one that is due while another runs begins when
// that is over. Its benchmarks, and their reports, go with it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=qbenchs,categories=qtls
// +kubebuilder:printcolumn:name="Schedule",type=string,JSONPath=`.spec.schedule`
// +kubebuilder:printcolumn:name="Time Zone",type=string,JSONPath=`.spec.timeZone`
// +kubebuilder:printcolumn:name="Suspend",type=boolean,JSONPath=`.spec.suspend`
// +kubebuilder:printcolumn:name="Active",type=string,JSONPath=`.status.active`
// +kubebuilder:printcolumn:name="Last",type=date,JSONPath=`.status.lastScheduleTime`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 31",message="metadata.name: at most 31 characters, so that the names of its benchmarks fit"
type QTLSBenchmarkSchedule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what is to be measured, and when.
	// +required
	Spec QTLSBenchmarkScheduleSpec `json:"spec"`
	// status is what became of it.
	// +optional
	Status QTLSBenchmarkScheduleStatus `json:"status,omitempty"`
}

// QTLSBenchmarkScheduleSpec says what is measured, and when.
// +kubebuilder:validation:XValidation:rule="!has(self.baseline) || self.baseline != 'Previous' || !has(self.template.spec.load) || !has(self.template.spec.load.repetitions) || self.template.spec.load.repetitions > 1",message="baseline: what Previous compares needs an interval, and that 2 of template.spec.load.repetitions"
type QTLSBenchmarkScheduleSpec struct {
	// schedule in the form of cron, as CronJobs have it: five fields, minute, hour,
	// day of the month, month and day of the week, or @hourly, @daily, @weekly,
	// @monthly, @yearly.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="!self.contains('TZ=')",message="schedule: it has no time zone; use timeZone"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('@every')",message="schedule: @every has no times of its own; use fields, as in \"*/30 * * * *\""
	Schedule string `json:"schedule"`

	// timeZone of the schedule, by its name in the database of IANA, such as
	// Europe/Berlin. Default: UTC.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	TimeZone *string `json:"timeZone,omitempty"`

	// suspend: none is made any more. One that runs goes on.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// startingDeadlineSeconds is how late one may be made, because another ran or
	// there was no operator. Later it is left out. Default: of all that were missed
	// the last is made, however late.
	// +optional
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=604800
	StartingDeadlineSeconds *int64 `json:"startingDeadlineSeconds,omitempty"`

	// successfulHistoryLimit is how many benchmarks that have completed are kept,
	// and their reports: the latest.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	SuccessfulHistoryLimit *int32 `json:"successfulHistoryLimit,omitempty"`

	// failedHistoryLimit is how many are kept that have failed, or were cancelled.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	FailedHistoryLimit *int32 `json:"failedHistoryLimit,omitempty"`

	// baseline: None leaves the template's baselineRef. Previous compares each
	// benchmark with the last one before it whose points are all valid and that has
	// passed, if it has a condition Passed; so one that is worse does not become the
	// measure of the next. One that was refused a comparison, for machines, quotas or
	// load are others, becomes it: what was before tells nothing of them. That one is
	// kept beyond successfulHistoryLimit. Until there is one, the template's is taken,
	// whose force and tolerance stay.
	// +optional
	// +kubebuilder:default=None
	Baseline ScheduledBaseline `json:"baseline,omitempty"`

	// template of the benchmarks.
	// +required
	Template QTLSBenchmarkTemplate `json:"template"`
}

// ScheduledBaseline says what each benchmark of a schedule is compared with.
// +kubebuilder:validation:Enum=None;Previous
type ScheduledBaseline string

const (
	// ScheduledBaselineNone is the template's, if it has one.
	ScheduledBaselineNone ScheduledBaseline = "None"
	// ScheduledBaselinePrevious is the last one that was good.
	ScheduledBaselinePrevious ScheduledBaseline = "Previous"
)

// QTLSBenchmarkTemplate is what each benchmark is made of.
type QTLSBenchmarkTemplate struct {
	// spec of each benchmark.
	// +required
	// +kubebuilder:validation:XValidation:rule="!has(self.cancel) || !self.cancel",message="cancel: not in a template; suspend the schedule instead"
	Spec QTLSBenchmarkSpec `json:"spec"`
}

// QTLSBenchmarkScheduleStatus is what became of a schedule.
type QTLSBenchmarkScheduleStatus struct {
	// observedGeneration is the generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// active is the name of the benchmark that is not over.
	// +optional
	Active string `json:"active,omitempty"`
	// lastScheduleTime is the time of the schedule that a benchmark was last made for.
	// +optional
	LastScheduleTime *metav1.Time `json:"lastScheduleTime,omitempty"`
	// lastSuccessfulTime is when a benchmark last completed.
	// +optional
	LastSuccessfulTime *metav1.Time `json:"lastSuccessfulTime,omitempty"`
}

// QTLSBenchmarkScheduleList is a list of QTLSBenchmarkSchedules.
// +kubebuilder:object:root=true
type QTLSBenchmarkScheduleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []QTLSBenchmarkSchedule `json:"items"`
}
