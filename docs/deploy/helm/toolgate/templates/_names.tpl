{{- define "toolgate.name" -}}
{{- contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "toolgate.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "toolgate.labels" -}}
{{ include "toolgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "toolgate.hosts" -}}
{{- $name := include "toolgate.name" . }}
{{- range $service := list $name (printf "%s-admin" $name) }}
- {{ $service }}
- {{ $service }}.{{ $.Release.Namespace }}
- {{ $service }}.{{ $.Release.Namespace }}.svc
- {{ $service }}.{{ $.Release.Namespace }}.svc.cluster.local
{{- end }}
{{- end }}

{{/* The configuration: what the values say, and what the chart knows. */}}
{{- define "toolgate.config" -}}
{{- $known := dict "listen" "0.0.0.0:8787" "admin" "0.0.0.0:8788" "insecure" (not .Values.tls.secret)
      "shutdown" (dict "delay" (printf "%vs" .Values.shutdown.delay) "drain" (printf "%vs" .Values.shutdown.drain))
      "allowed_hosts" (concat (include "toolgate.hosts" . | fromYamlArray) .Values.allowedHosts) }}
{{- if .Values.tls.secret }}
{{- $pair := dict "cert" "/etc/toolgate-tls/tls.crt" "key" "/etc/toolgate-tls/tls.key" }}
{{- $known = merge $known (dict "tls" $pair "admin_tls" $pair) }}
{{- else if not .Values.insecure }}
{{- fail "set tls.secret, or insecure: true for a mesh or a proxy that speaks TLS" }}
{{- else if not .Values.networkPolicy.enabled }}
{{- fail "insecure: true needs networkPolicy.enabled: plain HTTP has to be fenced" }}
{{- end }}
{{- if and (gt (int .Values.replicas) 1) (not (and .Values.store.secret .Values.keys.claim)) }}
{{- fail "more than one replica needs store.secret and keys.claim: replicas share a database and their keys" }}
{{- end }}
{{- if .Values.store.secret }}
{{- $known = merge $known (dict "store" "${STORE_URL}") }}
{{- end }}
{{- if .Values.shared.secret }}
{{- $known = merge $known (dict "shared" (dict "url" "${SHARED_URL}")) }}
{{- end }}
{{- if .Values.replica.secret }}
{{- if not .Values.shared.secret }}
{{- fail "replica.secret needs shared.secret: replicas find each other on that server" }}
{{- end }}
{{- $dir := "/etc/toolgate-replica" }}
{{- $known = merge $known (dict "replica" (dict "listen" "0.0.0.0:8789"
      "address" (printf "${POD_NAME}.%s-replicas.%s.svc:8789" (include "toolgate.name" .) .Release.Namespace)
      "tls" (dict "cert" (printf "%s/tls.crt" $dir) "key" (printf "%s/tls.key" $dir) "ca" (printf "%s/ca.crt" $dir)))) }}
{{- end }}
{{- if .Values.policy.configMap }}
{{- $known = merge $known (dict "policy" (dict "path" "/etc/toolgate-policy")) }}
{{- end }}
{{- $toolgate := mergeOverwrite (deepCopy (.Values.config.toolgate | default dict)) $known }}
{{- dict "mcpServers" (.Values.config.mcpServers | default dict) "toolgate" $toolgate | toPrettyJson }}
{{- end }}
