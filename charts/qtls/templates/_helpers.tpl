{{- /* Name of the chart, as a label. */ -}}
{{- define "qtls.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* Name of the release's objects: the release's, if that says it all. */ -}}
{{- define "qtls.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "qtls.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "qtls.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* Labels of the operator's pods, which never change. */ -}}
{{- define "qtls.selector" -}}
app.kubernetes.io/name: {{ include "qtls.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{- /* Labels of every object. */ -}}
{{- define "qtls.labels" -}}
app.kubernetes.io/name: {{ include "qtls.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "qtls.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "qtls.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name: needed when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* An image: a dict of root and image. */ -}}
{{- define "qtls.image" -}}
{{- printf "%s/%s:%s" .root.Values.imageRegistry .image.repository (default .root.Chart.AppVersion .image.tag) }}
{{- with .image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- /* The generated rules of the operator: a document with the keys cluster, namespaced and own. */ -}}
{{- define "qtls.rules" -}}
{{- .Files.Get "files/rules.yaml" }}
{{- end }}

{{- /* What the operator may do in a namespace that it serves: of the generated rules all, or those that benchmarks do not need. */ -}}
{{- define "qtls.namespacedRules" -}}
{{- $benchmarks := .Values.benchmarks.enabled }}
{{- $rules := list }}
{{- range (include "qtls.rules" . | fromYaml).namespaced }}
{{- $rule := deepCopy . }}
{{- if not $benchmarks }}
{{- $others := list }}
{{- range .resources }}
{{- if not (or (hasPrefix "qtlsbenchmark" .) (has . (list "jobs" "pods/log"))) }}
{{- $others = append $others . }}
{{- end }}
{{- end }}
{{- $_ := set $rule "resources" $others }}
{{- if has "qtlsgateways" $others }}
{{- $_ := set $rule "verbs" (list "get" "list" "watch") }}
{{- end }}
{{- end }}
{{- if $rule.resources }}
{{- $rules = append $rules $rule }}
{{- end }}
{{- end }}
{{- toYaml $rules }}
{{- end }}

{{- /* A binding's subject: the operator. */ -}}
{{- define "qtls.subject" -}}
- kind: ServiceAccount
  name: {{ include "qtls.serviceAccount" . | quote }}
  namespace: {{ .Release.Namespace | quote }}
{{- end }}
