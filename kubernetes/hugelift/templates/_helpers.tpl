{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{/* Names and labels that several templates use. */}}

{{- define "hugelift.name" -}}
{{- if eq .Release.Name .Chart.Name }}{{ .Chart.Name }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "hugelift.clusterName" -}}
{{ printf "%s-%s" .Release.Namespace (include "hugelift.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "hugelift.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "hugelift.labels" -}}
{{ include "hugelift.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "hugelift.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Not empty if the pods are listed. */}}
{{- define "hugelift.pods" -}}
{{- if and .Values.kubectl.enabled .Values.kubectl.pods }}yes{{ end -}}
{{- end }}

{{/* The policy with the table that the chart adds. It refuses what cannot work. */}}
{{- define "hugelift.policy" -}}
{{- if regexMatch "(?m)^\\s*\\[metrics\\]" .Values.policy }}
{{- fail "policy: the chart writes the table [metrics]; remove it" }}
{{- end }}
{{- if and (eq .Values.mode "pagecache") (regexMatch "(?m)^\\s*do\\s*=.*\"(code|memory|shm)\"" .Values.policy) }}
{{- fail "policy: a rule changes processes, which takes 'mode: lift'" }}
{{- end }}
{{- if and (not (include "hugelift.pods" .)) (regexMatch "(?m)^\\s*(label)\\s*=" .Values.policy) }}
{{- fail "policy: a rule asks for a label, which takes 'kubectl.enabled' and 'kubectl.pods'" }}
{{- end -}}
[metrics]
port = {{ .Values.metrics.port }}
address = "0.0.0.0"

{{ .Values.policy }}
{{- end }}
